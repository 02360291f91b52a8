"""The task of preferences: its losses and gradients by hand, its measures, and the reference that a run keeps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.talks import END, PAIRS, TALKS, as_talk, model_of, naive, run_fields, written
from tasks.task_runs import records_file, settings
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights
from weft.api import measure
from weft.core.errors import CheckpointError, ConfigError, DataError
from weft.data.preference_pairs import PreferencePairs
from weft.data.settings import DataSettings
from weft.tasks.preferences import Preferences, PreferencesConfig
from weft.tasks.text import text_columns
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training import parse_run, train
from weft.training.gradient import add_gradients
from weft.training.reference import REFERENCE_FILE


def task(**fields: Any) -> Preferences:
    context = fields.pop("context", 64)
    return Preferences(PreferencesConfig(**{"template": "llama2", **fields}), settings(context=context))


def pairs_of(folder: Path, made: Preferences, rows: list[dict[str, Any]] = PAIRS) -> PreferencePairs:
    data = DataSettings(path=str(records_file(folder, rows)), validation=0.2)
    return made.material(data, ByteTokenizerConfig()).train


def identity(ids: list[int]) -> str:
    return bytes(token for token in ids if token != END).decode()


BY_TEXT = {identity(written(as_talk(pair, side))[0]): (pair, side) for pair in PAIRS for side in ("chosen", "rejected")}


def held(rows: Any) -> list[dict[str, str]]:
    """The pairs of a batch, in order, from its tokens."""
    whole = torch.full((len(rows.inputs),), rows.inputs.shape[1])
    count = whole if rows.span.count is None else rows.span.count
    found = [BY_TEXT[identity([*ids[:length], last[length - 1]])] for ids, last, length in zip(
        rows.inputs.tolist(), rows.targets.tolist(), count.tolist(), strict=True)]
    assert [side for _, side in found] == ["chosen", "rejected"] * (len(found) // 2)
    assert all(one[0] is other[0] for one, other in zip(found[::2], found[1::2], strict=True))
    return [pair for pair, _ in found[::2]]


FORMS: list[dict[str, Any]] = [
    {}, {"beta": 0.5, "label_smoothing": 0.2}, {"per_token": True, "beta": 2.0},
    {"loss": "ipo"}, {"loss": "ipo", "beta": 0.3, "per_token": True}]


def by_hand(model: Any, reference: Any, pair: dict[str, str], *, loss: str = "dpo", beta: float = 0.1,
            label_smoothing: float = 0.0, per_token: bool = False) -> torch.Tensor:
    """The loss of one pair, as the papers' equations have it."""
    ratio = {}
    for side in ("chosen", "rejected"):
        talk = as_talk(pair, side)
        ratio[side] = naive(model, talk) - naive(reference, talk).detach()
        if per_token:
            ratio[side] = ratio[side] / sum(written(talk)[1])
    h = ratio["chosen"] - ratio["rejected"]
    if loss == "ipo":
        return (h - 1 / (2 * beta)) ** 2
    right, wrong = 1 / (1 + torch.exp(-beta * h)), 1 / (1 + torch.exp(beta * h))
    return -(1 - label_smoothing) * torch.log(right) - label_smoothing * torch.log(wrong)


@pytest.mark.parametrize("fields", FORMS, ids=["dpo", "smoothed", "per token", "ipo", "ipo per token"])
def test_losses_and_gradients_are_those_of_the_equations(tmp_path: Path, fields: dict[str, Any]) -> None:
    made, model, reference = task(**fields), model_of(), model_of(1)
    batch = made.batches(made.compared(pairs_of(tmp_path, made), reference)).batch(0)
    sums, _ = add_gradients(made, model, [batch], None, device="cpu")
    together = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    pairs = held(batch.columns.rows)
    total = torch.stack([by_hand(model, reference, pair, **fields) for pair in pairs]).sum()
    (total / len(pairs)).backward()  # type: ignore[no-untyped-call]
    assert sums.tokens == len(pairs) == 4 and sums.nats == pytest.approx(total.item(), rel=1e-10)
    alone = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_measures_are_those_by_hand(tmp_path: Path) -> None:
    made, model, reference = task(beta=0.5), model_of(), model_of(1)
    examples = made.compared(pairs_of(tmp_path, made), reference)
    found = made.measure(model, examples)
    pairs = [pair for rows, _ in made._in_order(examples) for pair in held(text_columns(rows))]
    with torch.no_grad():
        own, other = (np.array([[naive(each, as_talk(pair, side)).item() for side in ("chosen", "rejected")]
                                for pair in pairs]) for each in (model, reference))
        loss = sum(by_hand(model, reference, pair, beta=0.5).item() for pair in pairs) / len(pairs)
    margins = 0.5 * ((own - other)[:, 0] - (own - other)[:, 1])
    wanted = {"accuracy": (margins > 0).astype(float), "margin": margins, "chosen": own[:, 0], "rejected": own[:, 1]}
    assert found.tokens == len(pairs) and found.loss == pytest.approx(loss, rel=1e-9)
    for name, values in wanted.items():
        assert found.measures[name] == pytest.approx(values.mean(), rel=1e-9)
        error = math.sqrt(((values - values.mean()) ** 2).sum() / (len(values) - 1) / len(values))
        assert found.measures[f"{name}_standard_error"] == pytest.approx(error, rel=1e-9)
    same = made.measure(reference, examples)
    assert same.measures["accuracy"] == 0.5 and same.loss == pytest.approx(math.log(2)), "equal rewards count half"
    assert same.loss == pytest.approx(made.guess(reference))


def test_ranks_share_a_batch_and_every_pair_comes_once_an_epoch(tmp_path: Path) -> None:
    made = task()
    examples = made.with_reference(found := pairs_of(tmp_path, made), np.arange(len(found.starts), dtype=np.float64))
    batches = made.batches(examples)
    whole, halves = batches.batch(0).columns, [batches.batch(0, rank=rank, world=2).columns for rank in range(2)]
    assert torch.equal(torch.cat([half.rows.inputs for half in halves]), whole.rows.inputs)
    assert torch.equal(torch.cat([half.reference for half in halves]), whole.reference)
    seen = [row for step in range(examples.size) for row in batches.batch(step).columns.reference.tolist()]
    assert sorted(seen) == sorted(examples.reference.tolist() * 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(("rule", "kept"), [("drop", 24), ("cut", 25)])
def test_pairs_of_which_one_is_too_long_are_left_out_or_cut(tmp_path: Path, rule: Any, kept: int) -> None:
    rows = [*PAIRS, {"prompt": "a", "chosen": "b", "rejected": "c" * 90}, {"prompt": "a" * 90, "chosen": "b",
                                                                           "rejected": "c"}]
    data = DataSettings(path=str(records_file(tmp_path, rows)), validation=None,
                        validation_path=str(records_file(tmp_path, PAIRS[:2], "held.jsonl")))
    made = task(too_long=rule)
    examples = made.material(data, ByteTokenizerConfig()).train
    assert (examples.size, examples.pairs, examples.longer) == (kept, 26, 2) and examples.lengths.max() <= 64
    told = made.batches(examples).notice
    fate = "left out" if rule == "drop" else "cut at their ends"
    assert told == f"{kept} of 26 pairs; 2 longer than the context {fate}"
    with pytest.raises(DataError, match=r"no pair is left: 26 of 26 are longer than the context of 4 tokens"):
        task(context=4).material(data, ByteTokenizerConfig())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on preferences from a checkpoint."""
    folder = tmp_path_factory.mktemp("preferences")
    train(parse_run(run_fields(folder, {"kind": "preferences", "template": "llama2"}, PAIRS)), folder / "run")
    return folder


def test_a_run_keeps_what_it_compares_with_and_goes_on_bit_for_bit(trained: Path) -> None:
    run = parse_run(run_fields(trained, {"kind": "preferences", "template": "llama2"}, PAIRS))
    run_killed_at(run, trained / "halves", 4)
    kept = (trained / "halves" / REFERENCE_FILE).read_text()
    halves, whole = train(run, trained / "halves", resume=True), trained / "run"
    assert (trained / "halves" / REFERENCE_FILE).read_text() == kept == (whole / REFERENCE_FILE).read_text()
    assert halves.validation.measures["margin"] > 0, "the better answers gain"
    from weft.api import load

    assert same_weights(halves.model, load(whole).model)
    again = measure(whole)
    assert again.measures["accuracy"] == pytest.approx(halves.validation.measures["accuracy"], abs=0.3)


@pytest.mark.parametrize(("change", "message"), [
    (lambda path: path.unlink(), r"the reference log-probabilities cannot be read .* begin the run in another folder"),
    (lambda path: path.write_text(path.read_text().replace('"digest": "', '"digest": "0')),
     r"are of other weights, conversations or another tokenizer than the run's"),
], ids=["missing", "other"])
def test_another_reference_is_refused(trained: Path, change: Any, message: str) -> None:
    run = parse_run(run_fields(trained, {"kind": "preferences", "template": "llama2"}, PAIRS))
    path = trained / "run" / REFERENCE_FILE
    before = path.read_text()
    change(path)
    with pytest.raises(CheckpointError, match=message):
        train(run, trained / "run", resume=True)
    path.write_text(before)


def test_numbers_of_a_reference_must_fit(tmp_path: Path) -> None:
    made = task()
    with pytest.raises(DataError, match=r"3 log-probabilities of the reference, some perhaps not finite, for \d+ answ"):
        made.with_reference(pairs_of(tmp_path, made), np.zeros(3))


def test_a_run_that_starts_from_nothing_has_no_reference(tmp_path: Path) -> None:
    fields = run_fields(tmp_path, {"kind": "preferences", "template": "llama2"}, PAIRS)
    model = {"kind": "decoder", "d_model": 8, "context": 64, "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
    with pytest.raises(ConfigError, match=r"start: nothing, while the task 'preferences' compares the model"):
        train(parse_run({**fields, "start": None, "model": model}), tmp_path / "run")


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    fields = {"kind": "preferences", "template": "llama2", "loss": "ipo", "label_smoothing": 0.1}
    with pytest.raises(ConfigError, match=r"label_smoothing: 0\.1, which the loss 'ipo' does not have"):
        parse_run(run_fields(tmp_path, fields, PAIRS))
    with pytest.raises(DataError, match=r"rows\.jsonl, line 1: no field 'chosen'"):
        pairs_of(tmp_path, task(), TALKS)
    assert PreferencesConfig().declares().rows_each == 2
    assert json.loads(json.dumps(PreferencesConfig().dump()))["beta"] == 0.1
