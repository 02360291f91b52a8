"""Translation as it is trained: two files, a vocabulary of both languages, batches by length, smoothed labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.task_runs import CROSS, ENCODER, ENCODER_DECODER, PAIRS, records_file
from tasks.test_sequence_to_sequence import model_of, pairs_of, rows_in, task
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights
from weft.core.errors import ConfigError, DataError
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.models.encoder_decoder import EncoderDecoder
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.sequence_to_sequence import SequenceToSequenceConfig
from weft.training import RunConfig, Started, parse_run, train
from weft.training.budget import settle_steps
from weft.training.material import prepare
from weft.training.rates import flops_per_row
from weft.training.requirements import rank_problems
from weft.training.run_training import build_model

BUDGET = SequenceToSequenceConfig(batch_tokens=40)


def text_files(folder: Path) -> str:
    """Two files, in which numbers are spelled out in two languages."""
    words = [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier")]
    rows = [[words[(i // 4**place) % 4] for place in range(1 + i % 4)] for i in range(120)]
    for side, name in enumerate(("en", "de")):
        (folder / f"text.{name}").write_text("".join(" ".join(word[side] for word in row) + "\n" for row in rows))
    return str(folder / "text.{}")


def translation(folder: Path, **training: Any) -> RunConfig:
    return parse_run({
        "task": {"kind": "sequence_to_sequence", "source_field": "en", "target_field": "de", "batch_tokens": 60},
        "model": {**ENCODER_DECODER, "tied_source": True}, "tokenizer": {"kind": "bpe", "vocab_size": 286},
        "data": {"path": text_files(folder)},
        "training": {"steps": 6, "optimizer": {"beta1": 0.9, "beta2": 0.98, "lr": 0.01},
                     "schedule": {"kind": "inverse_sqrt", "warmup": 0.5}, "objective": {"label_smoothing": 0.1},
                     "compute": {"matmul": "default"}, **training},
        "report": {"eval_every": 3, "eval_batches": 2, "log_every": 1}})


def test_two_files_train_with_one_vocabulary_and_one_embedding_and_a_killed_run_resumes(tmp_path: Path) -> None:
    run = translation(tmp_path)
    events: list[Any] = []
    whole = train(run, tmp_path / "whole", on_event=events.append)
    model = whole.model
    assert isinstance(model, EncoderDecoder)
    assert model.encoder.embedding.tokens.weight is model.embedding.tokens.weight is model.readout.weight
    pieces = {whole.tokenizer.decode([token]) for token in range(whole.tokenizer.vocab_size)}
    assert {" two", " zwei"} <= pieces, "merges of both languages"
    started = next(event for event in events if isinstance(event, Started))
    assert started.tokens_per_step == 60
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, model) and resumed.validation == whole.validation


def test_batches_hold_at_most_the_budget_of_each_side_and_no_more_padding_than_their_own(tmp_path: Path) -> None:
    pairs = pairs_of(tmp_path, config=BUDGET)
    made = task(BUDGET)
    batches = made.batches(pairs)
    steps = round(len(pairs.sources) / batches.rows)
    seen: list[tuple[str, str]] = []
    for step in range(steps):
        batch = batches.batch(step)
        source, sizes, inputs, _, _, counts = batch.columns
        for rows, width, most in ((source, source.shape[1], sizes), (inputs, inputs.shape[1] + 1, counts + 1)):
            assert len(rows) * width <= 40 and width == most.max()
        seen += rows_in(batch)
        parts = [batches.batch(step, rank=rank, world=3) for rank in range(3)]
        assert [row for part in parts for row in rows_in(part)] == rows_in(batch)
    everyone = task().batches(pairs)
    assert sorted(seen) == sorted(row for step in range(len(seen)) for row in rows_in(everyone.batch(step)))[::4]
    assert batches.lengths.tokens == pytest.approx(len(pairs) / len(pairs.targets))


def test_ranks_without_a_row_and_with_some_have_the_gradient_of_all(tmp_path: Path) -> None:
    made, model = task(BUDGET), model_of()
    batches = made.batches(pairs_of(tmp_path, config=BUDGET))
    rows = batches.batch(0).count.rows
    totals = []
    for world in (1, rows + 2):
        model.zero_grad()
        for rank in range(world):
            made.loss(model, batches.batch(0, rank=rank, world=world).columns, None).loss.backward()
        totals.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*totals, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_the_measure_does_not_depend_on_how_pairs_are_batched(tmp_path: Path) -> None:
    model, pairs = model_of().eval(), pairs_of(tmp_path, config=BUDGET)
    found = [task(config).measure(model, pairs) for config in (BUDGET, None)]
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-10)
    assert found[0].measures["perplexity"] == pytest.approx(np.exp(found[1].loss), rel=1e-10)
    assert (found[0].tokens, found[0].bytes) == (found[1].tokens, found[1].bytes)


def test_smoothed_labels_are_those_of_the_definition(tmp_path: Path) -> None:
    """(1 - e) times the negative log-likelihood plus e times the mean of it over the vocabulary, at every target."""
    made = task(objective=ObjectiveSettings(label_smoothing=0.1))
    model = model_of()
    given = made.batches(pairs_of(tmp_path)).batch(0).columns
    found = made.loss(model, given, None)
    found.loss.backward()
    gradient = model.embedding.tokens.weight.grad.clone()
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(given.inputs)):
        size, length = int(given.source_count[row]), int(given.target_count[row])
        memory = model.encode(EncoderInputs(tokens=given.source[row:row + 1, :size]))
        z = model(given.inputs[row:row + 1, :length], None, Span(memory=memory)).y[0].log_softmax(-1)
        total = total - 0.9 * z[range(length), given.targets[row, :length]].sum() - 0.1 * z.mean(-1).sum()
    total.backward()
    torch.testing.assert_close(found.loss, total, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, model.embedding.tokens.weight.grad, rtol=1e-8, atol=1e-10)


def test_a_budget_of_operations_pays_for_the_mean_batch(tmp_path: Path) -> None:
    run = parse_run(translation(tmp_path).dump(), ["training.steps=null", "training.flops=1e8"])
    material, model = prepare(run), build_model(run)
    made = run.made_task()
    batches = made.batches(material.train)
    row = flops_per_row(model, batches.lengths)
    assert settle_steps(run, model, material.train, "cpu") == int(1e8 // (batches.rows * row))


@pytest.mark.parametrize(("row", "message"), [
    ({"source": "a" * 16, "target": "b"}, r"rows\.jsonl:7: the source has 17 tokens with the one that ends it, and the "
                                          r"context is 16\. Raise training\.context, remove that pair, or set "
                                          r"task\.cut: true"),
    ({"source": "a", "target": "b" * 16}, r"rows\.jsonl:7: the target has 17 tokens with the one that ends it"),
])
def test_a_pair_longer_than_the_context_is_refused_at_its_place(tmp_path: Path, row: dict[str, str],
                                                               message: str) -> None:
    with pytest.raises(DataError, match=message):
        pairs_of(tmp_path, [*PAIRS[:6], row, *PAIRS[7:]])
    fitting = {name: text[:15] for name, text in row.items()}
    assert pairs_of(tmp_path, [*PAIRS[:6], fitting, *PAIRS[7:]]).cut == 0


@pytest.mark.parametrize(("changes", "message"), [
    (["task.batch_tokens=16"], "task.batch_tokens: 16 tokens, which a pair of training.context 16 with its opening "
                               "token exceeds. Raise it, or lower the context."),
    (["training.compute.compile=true"], "training.compute.compile: true, while the batches of this task have many "
                                        "shapes, each of which would be compiled. Leave it out, or leave out "
                                        "task.batch_tokens."),
])
def test_settings_that_do_not_go_with_a_budget_are_refused(tmp_path: Path, changes: list[str], message: str) -> None:
    run = parse_run({"task": {"kind": "sequence_to_sequence", "batch_tokens": 64},
                     "model": {**ENCODER_DECODER, "blocks": [{"kind": "pre", "layers": CROSS}], "encoder": ENCODER},
                     "data": {"path": str(records_file(tmp_path, PAIRS))}}, changes)
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


def test_any_number_of_ranks_shares_a_budget(tmp_path: Path) -> None:
    run = translation(tmp_path)
    model = build_model(run)
    assert list(rank_problems(run, model, 3, 3)) == []
    problem, = rank_problems(parse_run(run.dump(), ["task.batch_tokens=null"]), model, 3, 3)
    assert problem.startswith("training.batch_size: 16 rows do not divide among 3 ranks")
