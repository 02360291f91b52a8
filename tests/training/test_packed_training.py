"""Training on packed documents: the loss of documents alone, resumed bit for bit, budgets of real tokens."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from training.test_resume import run_killed_at
from training.tiny_runs import ATTENTION, LSTM, next_token, same_weights, tiny_run
from weft.core.errors import ConfigError
from weft.core.span import Span
from weft.tasks.text import text_batches, text_rows
from weft.training import RunConfig, parse_run, train
from weft.training.budget import settle_steps, tokens_per_step
from weft.training.gradient import add_gradients
from weft.training.material import prepare
from weft.training.run_training import build_model

PACKED = ("data.documents=line", "data.packing=documents", "training.context=110")
EXPERTS: dict[str, Any] = {
    "kind": "decoder", "d_model": 12, "context": 8, "norm": {"kind": "batchnorm"},
    "blocks": [{"kind": "pre", "layers": [{"kind": "s4d", "d_state": 4}, {"kind": "moe", "n_experts": 4, "top_k": 2,
                                                                       "expert": {"kind": "mlp", "d_ff": 8}}]}]}


def packed_run(folder: Path, model: dict[str, Any], *overrides: str, **training: Any) -> RunConfig:
    return parse_run(tiny_run(folder, model, **training).dump(), (*PACKED, *overrides))


@pytest.mark.parametrize("model", [ATTENTION, LSTM])
def test_a_packed_batch_scores_as_its_documents_do_alone(tmp_path: Path, model: dict[str, Any]) -> None:
    run = packed_run(tmp_path, {**model, "embedding": {"dropout": 0.0}})
    torch.manual_seed(0)
    subject = build_model(run).double().train()
    batch = text_batches(run.made_task().settings, prepare(run).train).batch(0)
    assert batch.count is not None and (batch.count < 110).any(), "padding is part of the case"
    assert batch.begins.sum() >= 3 * len(batch.begins), "and so are several documents in a row"
    sums, _ = add_gradients(next_token(), subject, [text_rows(batch)], None, device="cpu")
    gradients = [parameter.grad.clone() for parameter in subject.parameters() if parameter.grad is not None]
    subject.zero_grad()
    nats = torch.zeros((), dtype=torch.float64)
    for row, count in enumerate(batch.count.tolist()):
        starts = [*batch.begins[row].nonzero()[0].tolist(), count]
        for first, last in pairwise(starts):
            tokens, targets = (torch.from_numpy(each[row, first:last])[None] for each in (batch.inputs, batch.targets))
            nats = nats - subject.readout.log_prob(subject.hidden(tokens, None, Span()).y, targets).sum()
    (nats / sums.tokens).backward()  # type: ignore[no-untyped-call]
    assert sums.tokens == batch.count.sum() and sums.bytes == batch.scored_bytes
    assert sums.nats == pytest.approx(nats.item(), rel=1e-12)
    alone = [parameter.grad for parameter in subject.parameters() if parameter.grad is not None]
    for together, apart in zip(gradients, alone, strict=True):
        torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-12)


def test_padding_reaches_neither_experts_nor_statistics(tmp_path: Path) -> None:
    """Whatever ids stand there: losses, gradients and running means stay the same, bit for bit."""
    run = packed_run(tmp_path, EXPERTS)
    batch = text_batches(run.made_task().settings, prepare(run).train).batch(0)
    assert batch.count is not None
    results = []
    for filler in (0, 77):
        for row, count in enumerate(batch.count.tolist()):
            batch.inputs[row, count:] = batch.targets[row, count:] = filler
        torch.manual_seed(0)
        subject = build_model(run).train()
        sums, _ = add_gradients(next_token(), subject, [text_rows(batch)], None, device="cpu")
        results.append((sums, [*subject.buffers(), *(each.grad for each in subject.parameters())]))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1], results[1][1], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_a_packed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    run = packed_run(tmp_path, ATTENTION)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "halves", 15)
    halves = train(run, tmp_path / "halves", resume=True)
    assert same_weights(whole.model, halves.model) and whole.validation == halves.validation
    told = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    (notice,) = (record["text"] for record in told if record["event"] == "notice")
    assert "documents packed into" in notice and "0 longer than a window cut; padding" in notice
    assert json.loads((tmp_path / "whole/run.json").read_text())["config"]["data"]["packing"] == "documents"


def test_a_run_from_before_there_was_packing_goes_on(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM)
    run_killed_at(run, tmp_path / "run", 15)
    record = json.loads((tmp_path / "run/run.json").read_text())
    del record["config"]["data"]["packing"]
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    assert train(run, tmp_path / "run", resume=True).steps == 20
    with pytest.raises(ConfigError, match=r"data\.packing: 'documents', and the run began with 'stream'"):
        train(parse_run(run.dump(), ["data.packing=documents"]), tmp_path / "run", resume=True)


def test_validation_is_the_same_however_training_is_packed(tmp_path: Path) -> None:
    packed = packed_run(tmp_path, LSTM)
    plain = parse_run(packed.dump(), ["data.packing=stream"])
    one, other = (prepare(run).validation.tokens for run in (packed, plain))
    assert (one == other).all()


def test_a_budget_of_tokens_pays_for_no_padding(tmp_path: Path) -> None:
    run = packed_run(tmp_path, LSTM, "training.steps=null", "training.tokens=10000")
    stream, model = prepare(run).train, build_model(run)
    real = run.made_task().batches(stream).tokens_per_batch
    assert real < tokens_per_step(run) == 4 * 110
    assert settle_steps(run, model, stream, "cpu") == int(10000 // real)


def test_a_carried_state_and_packed_documents_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.packing: documents, with training\.carry_state: a state is carried "
                                          r"along a text .* Leave out one of them\."):
        packed_run(tmp_path, LSTM, "training.carry_state=true")
