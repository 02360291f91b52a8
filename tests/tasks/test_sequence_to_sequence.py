"""The task of pairs: what a batch holds, its loss by hand, bits per byte of the target, and what it refuses."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.task_runs import CROSS, ENCODER, ENCODER_DECODER, END, PAIRS, built, records_file, run_of, settings
from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights
from weft.core.errors import ConfigError, DataError
from weft.core.model import EncoderInputs, LanguageModel, Model, parse_model
from weft.core.span import Span
from weft.data.pairs import Pairs
from weft.data.settings import DataSettings
from weft.tasks.sequence_to_sequence import SequenceToSequence, SequenceToSequenceConfig
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training import parse_run, train
from weft.training.budget import settle_steps
from weft.training.material import prepare
from weft.training.rates import flops_per_row
from weft.training.run_training import build_model


def task(config: SequenceToSequenceConfig | None = None, **values: Any) -> SequenceToSequence:
    return SequenceToSequence(config or SequenceToSequenceConfig(), settings(**values))


def model_of() -> LanguageModel:
    found: Model = built(ENCODER_DECODER, vocab_size=257, encoder={**ENCODER, "vocab_size": 257})
    assert isinstance(found, LanguageModel)
    return found


def pairs_of(folder: Path, rows: list[dict[str, str]] = PAIRS, config: SequenceToSequenceConfig | None = None,
             **values: Any) -> Pairs:
    data = DataSettings(path=str(records_file(folder, rows)), validation=0.1)
    return task(config, **values).material(data, ByteTokenizerConfig()).train


def by_hand(model: LanguageModel, source: str, target: str) -> torch.Tensor:
    """The negative log-likelihood of one target, alone, token by token."""
    encoded = model.encode(EncoderInputs(tokens=torch.tensor([[*source.encode(), END]])))
    ids = [END, *target.encode(), END]
    total = torch.zeros((), dtype=torch.float64)
    for place in range(1, len(ids)):
        z = model(torch.tensor([ids[:place]]), None, Span(memory=encoded)).y[0, -1]
        total = total + torch.logsumexp(z, 0) - z[ids[place]]
    return total


def text(ids: Any) -> str:
    return bytes(int(token) for token in ids if token != END).decode()


def rows_in(batch: Any) -> list[tuple[str, str]]:
    """The sources and targets of a batch, in which each target is predicted one token after it is read."""
    source, sizes, inputs, targets, _, counts = (column.numpy() for column in batch.columns)
    return [(text(source[row, :sizes[row]]), text([*inputs[row, :1], *targets[row, :counts[row]]]))
            for row in range(len(source))]


def test_every_pair_comes_once_an_epoch_and_processes_share_a_batch(tmp_path: Path) -> None:
    pairs = pairs_of(tmp_path)
    count, batches = len(pairs.sources), task().batches(pairs)
    seen = [row for step in range(count) for row in rows_in(batches.batch(step))]
    assert len(seen) == 4 * count
    epochs = [seen[first:first + count] for first in range(0, 4 * count, count)]
    known = {(row["source"], row["target"]) for row in PAIRS}
    assert all(set(epoch) <= known and sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert epochs[0] != epochs[1] and count == sum(1 for _ in epochs[0])
    whole = batches.batch(3)
    parts = [batches.batch(3, rank=rank, world=2) for rank in range(2)]
    assert [row for part in parts for row in rows_in(part)] == rows_in(whole)
    assert {part.columns.targets.shape[1] for part in parts} == {whole.columns.targets.shape[1]}
    with pytest.raises(DataError, match=r"world: 4 rows do not divide into 3 ranks"):
        batches.batch(0, rank=0, world=3)


def row_flops(source: int, target: int, window: int | None = None) -> float:
    """Forward and backward of one pair by the formulas of its parts: a product of [n,a] and [a,b] takes 2nab, and the
    backward pass two such products more. No norm, embedding or softmax counts."""
    d, d_ff, vocab = 8, 16, 257
    encoder = source * (4 * d * d + 2 * d * d_ff) + 2 * source**2 * d
    memory = source * 2 * d * d  # keys and values of the cross-attention
    seen = sum(min(place, window or target) for place in range(1, target + 1))
    decoder = target * (6 * d * d + 2 * d * d_ff + d * vocab) + 2 * d * (seen + target * source)
    return 6 * (encoder + memory + decoder)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("sources", [(2, 2), (11, 11), (4, 5)])
def test_operations_of_a_step_are_those_of_its_sources_and_targets_without_padding(
        tmp_path: Path, sources: tuple[int, int], window: int | None) -> None:
    """Lengths that differ by one have the mean of both their operations exactly, scores included."""
    rows = [{"source": "s" * (sources[i % 2] - 1), "target": f"{i:05d}"} for i in range(40)]
    pairs = pairs_of(tmp_path, rows)
    mask = "causal" if window is None else f"causal & window({window})"
    blocks = [{"kind": "pre", "layers": [{**CROSS[0], "mask": mask}, *CROSS[1:]]}]
    model = parse_model({**ENCODER_DECODER, "blocks": blocks, "vocab_size": 257,
                         "encoder": {**ENCODER, "vocab_size": 257}}).build()
    made = task()
    lengths = made.batches(pairs).lengths
    assert lengths == (6, pytest.approx(pairs.sources.lengths.mean()))
    wanted = np.mean([row_flops(int(size), 6, window) for size in pairs.sources.lengths])
    assert flops_per_row(model, lengths) == pytest.approx(wanted, rel=1e-12)


def test_a_budget_of_operations_pays_for_the_pairs_and_no_padding(tmp_path: Path) -> None:
    rows = [{"source": "s" * 10, "target": "t" * (1 + i % 2)} for i in range(40)]
    run = parse_run(run_of(tmp_path, "sequence_to_sequence", ENCODER_DECODER,
                           path=records_file(tmp_path, rows)).dump(), ["training.steps=null", "training.flops=1e9"])
    material, model = prepare(run), build_model(run)
    lengths = material.train.targets.lengths - 1
    row = np.mean([row_flops(11, int(size)) for size in lengths])
    assert settle_steps(run, model, material.train, "cpu") == int(1e9 // (4 * row))


def test_loss_and_gradient_are_those_of_each_pair_alone(tmp_path: Path) -> None:
    made, model = task(), model_of()
    batch = made.batches(pairs_of(tmp_path)).batch(2)
    rows = rows_in(batch)
    assert len({len(source) for source, _ in rows}) > 1, "there is padding"
    count = batch.count
    assert count.predictions == sum(len(target.encode()) + 1 for _, target in rows)
    assert count.bytes == sum(len(target.encode()) for _, target in rows)
    found = made.loss(model, batch.columns, None)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total = torch.stack([by_hand(model, *row) for row in rows]).sum()
    torch.testing.assert_close(found.nats, total.detach(), rtol=1e-10, atol=1e-10)
    total.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-10)


def test_what_is_measured_is_bits_per_byte_of_the_targets(tmp_path: Path) -> None:
    model = model_of().eval()
    held = task().held_out(DataSettings(path=str(records_file(tmp_path, PAIRS)), validation=0.3),
                           ByteTokenizerConfig().fit(()))
    rows = [(text(held.sources.padded(np.array([i]), 16).ids[0, :held.sources.lengths[i]]),
             text(held.targets.padded(np.array([i]), 16).ids[0, :held.targets.lengths[i]]))
            for i in range(len(held.sources))]
    with torch.no_grad():
        nats = sum(float(by_hand(model, *row)) for row in rows)
    size = sum(len(target.encode()) for _, target in rows)
    for found in (task().measure(model, held), task(rows=3).measure(model, held)):
        assert (found.tokens, found.bytes) == (size + len(rows), size) == (len(held), size)
        assert found.loss == pytest.approx(nats / (size + len(rows)), rel=1e-9)
        assert found.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-9)
    assert "1 of" in task().measure(model, held, 1).protocol


def test_long_pairs_are_cut_at_their_ends_and_counted(tmp_path: Path) -> None:
    rows = [{"source": "a" * 20, "target": "b"}, {"source": "a", "target": "b" * 20}] + [
        {"source": "a" * 15, "target": "b" * 15}] * 30
    pairs = pairs_of(tmp_path, rows, SequenceToSequenceConfig(cut=True))
    batches, shapes = task().batches(pairs), set()
    for step in range(9):
        batch = batches.batch(step)
        shapes.add((batch.columns.source.shape[1], batch.columns.targets.shape[1]))
        for source, target in rows_in(batch):
            assert len(source) <= 16 and len(target) <= 16
    assert pairs.sources.longest == 16 and pairs.targets.longest == 17 and len(shapes) <= 4
    assert pairs.cut == 2
    assert batches.notice == (f"2 of {len(pairs.sources)} pairs are longer than the context of 16 tokens and were cut "
                              "at their ends")


def test_a_source_longer_than_the_encoder_s_positions_is_refused_before_a_step_or_cut(tmp_path: Path) -> None:
    """The context of the targets is 24 tokens, and the encoder's table of positions ends at 16."""
    rows = [{"source": "a" * 4, "target": "b" * 20}] * 30 + [{"source": "a" * 18, "target": "b"}] * 5
    model = {**ENCODER_DECODER, "context": 24}
    run = run_of(tmp_path, "sequence_to_sequence", model, path=records_file(tmp_path, rows), validation=0.1)
    with pytest.raises(DataError, match=r"rows\.jsonl.*: the source has 19 tokens with the one that ends it, and the "
                                        r"encoder has positions for 16\. Give the encoder more positions, remove that"):
        prepare(run)
    cutting = parse_run({**run.dump(), "task": {"kind": "sequence_to_sequence", "cut": True}})
    pairs = prepare(cutting).train
    assert isinstance(pairs, Pairs) and pairs.sources.longest == 16 and pairs.targets.longest == 22 and pairs.cut
    made = cutting.made_task()
    assert f"{pairs.cut} of {len(pairs.sources)} pairs are longer than the context (16 tokens of a source, 24 of a " \
        "target)" in str(made.batches(pairs).notice)
    free = {**model, "encoder": {**ENCODER, "position": "sinusoidal"}}
    longer = run_of(tmp_path, "sequence_to_sequence", free, path=records_file(tmp_path, rows), validation=0.1)
    assert prepare(longer).train.sources.longest == 19


def test_an_encoder_decoder_trains_and_a_killed_run_resumes(tmp_path: Path) -> None:
    run = run_of(tmp_path, "sequence_to_sequence", ENCODER_DECODER)
    assert run.dump()["model"]["encoder"]["vocab_size"] == 257
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation
    assert resumed.validation.bits_per_byte is not None


@pytest.mark.parametrize(("model", "message"), [
    ({**LSTM, "vocab_size": 9}, "model: a model of kind 'decoder' reads no source. Give an encoder-decoder, or task: "
                                "next_token"),
    ({**ENCODER, "vocab_size": 9}, "model: a model of kind 'encoder' predicts no next token. Give an encoder-decoder."),
    ({**ENCODER_DECODER, "vocab_size": 257, "encoder": {**ENCODER, "vocab_size": 9}},
     "model.encoder.vocab_size: 9, while targets have 257 ids; one tokenizer writes both. Leave it out"),
])
def test_models_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path, model: dict[str, Any],
                                                                    message: str) -> None:
    run = parse_run({"task": "sequence_to_sequence", "model": model, "data": {"path": str(tmp_path / "missing")}})
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(run, tmp_path / "run")


@pytest.mark.parametrize(("rows", "options", "message"), [
    ([{"source": "a", "taget": "b"}], {}, r"line 1: no field 'target'; the fields are: 'source', 'taget'\. Name the "
                                          r"one that holds the target with target_field\. Did you mean 'taget'\?"),
    ([{"source": "a", "target": ""}], {}, r"line 1: the field 'target' is empty\. Give both a source and a target"),
    ([{"source": 7, "target": "b"}], {}, r"line 1: the field 'source' holds a int, not text"),
    ([{"source": "a", "target": "b"}], {"validation": 0.5}, r"one record cannot be divided, so none can be held out"),
])
def test_records_that_are_no_pairs_are_refused(tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any],
                                               message: str) -> None:
    with pytest.raises(DataError, match=message):
        task().material(DataSettings(path=str(records_file(tmp_path, rows)), **options), ByteTokenizerConfig())


def test_settings_of_running_text_and_missing_paths_are_refused(tmp_path: Path) -> None:
    path = str(records_file(tmp_path, PAIRS))
    with pytest.raises(DataError, match=r"data\.path: this task reads records, and there is no path to them\. Give a"):
        task().material(DataSettings(), ByteTokenizerConfig())
    with pytest.raises(ConfigError, match=r"data\.text_field: 'body', while this task names the fields of records "
                                          r"itself\. Leave it out, and see the fields of the task: source_field, tar"):
        task().material(DataSettings(path=path, text_field="body"), ByteTokenizerConfig())
    with pytest.raises(DataError, match=r"data\.test_path: the run has no test records\. Name them"):
        task().held_out(DataSettings(path=path), ByteTokenizerConfig().fit(()), "test")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match=r"the file's name ends in \.txt, and records are read from files of \.csv"):
        task().material(DataSettings(path=str(tmp_path / "a.txt")), ByteTokenizerConfig())
    with pytest.raises(ConfigError, match=r"target_field: 'x' is the field of the source\. Name another field"):
        parse_run({"task": {"kind": "sequence_to_sequence", "source_field": "x", "target_field": "x"},
                   "model": {**LSTM, "vocab_size": 9}})
