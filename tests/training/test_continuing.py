"""Going on: a larger budget for a run that has ended, other reports, epochs, and starts from folders and models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft
from tasks.task_runs import CLASSES, ENCODER, ENCODER_DECODER, PAIRS, lines_file, records_file
from training.test_resume import run_killed_at
from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run, write_text
from weft.core.errors import CheckpointError, ConfigError, InputError, OccupiedError
from weft.core.model import parse_model
from weft.data.batch_source import RowBatches
from weft.tokenizers import ByteTokenizer, CharacterTokenizer
from weft.training import Event, Notice, RunConfig, parse_run, train
from weft.training.budget import settle_steps
from weft.training.material import prepare
from weft.training.run_training import build_model, difference

FLAT = {"kind": "constant", "warmup": 0.0}
POOLED = {**ENCODER, "context": 24, "head": "pooled"}


def changed(run: RunConfig, *overrides: str) -> RunConfig:
    return parse_run(run.dump(), overrides)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def notices(events: list[Event]) -> str:
    return "\n".join(event.text for event in events if isinstance(event, Notice))


def test_a_run_that_has_ended_goes_on_to_the_weights_of_the_longer_run(tmp_path: Path) -> None:
    run, events = tiny_run(tmp_path, ATTENTION, steps=5, schedule=FLAT), list[Event]()
    other = changed(run, "training.schedule={kind: inverse_sqrt, warmup: 0.0}")
    assert difference(run, 5, 5, 9) is None is difference(other, 5, 5, 9)
    assert difference(changed(run, "training.schedule.warmup=0.4"), 5, 5, 9) is not None
    longer = changed(run, "training.steps=9")
    whole = train(longer, tmp_path / "whole")
    train(run, tmp_path / "run")
    found = train(longer, tmp_path / "run", resume=True, on_event=events.append)
    assert found.steps == 9 and same_weights(found.model, whole.model) and found.validation == whole.validation
    assert "going on after 5 steps to 9 in place of 5, as a run of that many from its first step would." in notices(
        events)
    now = record(tmp_path / "run")
    assert (now["steps"], now["config"]["training"]["steps"], now["inexact"]) == (9, 9, [])
    again = train(longer, tmp_path / "run", resume=True)
    assert same_weights(again.model, whole.model), "the new budget is the run's own"


def test_what_differs_is_said_where_the_schedule_depends_on_the_budget(tmp_path: Path) -> None:
    run, events = tiny_run(tmp_path, LSTM, steps=5), list[Event]()
    train(run, tmp_path / "run")
    longer = changed(run, "training.steps=null", f"training.tokens={9 * 4 * 8}")
    found = train(longer, tmp_path / "run", resume=True, on_event=events.append)
    assert found.steps == 9 and not same_weights(found.model, train(longer, tmp_path / "whole").model)
    wanted = ("not as a run of that many from its first step would: step 1 had the learning rate 0.00914 of a run of 5 "
              "steps, and in one of 9 it has 0.00973; of schedules, constant and inverse_sqrt without a warm-up have "
              "the same rates in both.")
    assert wanted in notices(events)
    (why,) = record(tmp_path / "run")["inexact"]
    assert why["step"] == 5 and why["reason"].startswith("5 steps became 9: step 1 had the learning rate")
    unfrozen = changed(tiny_run(tmp_path, ATTENTION, steps=4, schedule=FLAT), "training.unfreeze={until: 0.5}",
                       "model.norm=layernorm")
    train(unfrozen, tmp_path / "slow")
    train(changed(unfrozen, "training.steps=6"), tmp_path / "slow", resume=True, on_event=events.append)
    assert "blocks unfroze by the share of 4 steps, and now do by that of 6." in notices(events)
    with pytest.raises(ConfigError, match=r"training\.steps: a budget of 3 steps, and the run has taken 6\. Raise it"):
        train(changed(unfrozen, "training.steps=3"), tmp_path / "slow", resume=True)


def test_other_reports_do_not_change_the_weights(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION, steps=10)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "run", 7)
    with pytest.raises(ConfigError, match=r"training\.schedule\.kind: 'constant', and the run began with 'cosine'"):
        train(changed(run, f"training.schedule={FLAT}"), tmp_path / "run", resume=True)
    other = changed(run, "report.eval_every=2", "report.log_every=3", "report.eval_batches=1", "report.keep=2")
    found = train(other, tmp_path / "run", resume=True)
    assert same_weights(found.model, whole.model) and record(tmp_path / "run")["config"]["report"]["eval_every"] == 2


@pytest.mark.parametrize(("task", "model", "rows"), [
    ("classify", POOLED, CLASSES), ("sequence_to_sequence", ENCODER_DECODER, PAIRS),
    ("masked", {**ENCODER, "head": "masked_token"}, None), ("next_token", LSTM, None)])
@pytest.mark.parametrize(("epochs", "accumulation"), [(1.0, 1), (2.5, 1), (3.0, 2)])
def test_epochs_are_passes_over_the_data(tmp_path: Path, task: str, model: dict[str, Any],
                                         rows: list[dict[str, Any]] | None, epochs: float, accumulation: int) -> None:
    path = lines_file(tmp_path) if rows is None else records_file(tmp_path, rows)
    run = parse_run({"task": task, "model": model, "data": {"path": str(path)}, "training": {
        "epochs": epochs, "batch_size": 4, "accumulation": accumulation, "compute": {"matmul": "default"}}})
    examples = prepare(run).train
    steps = settle_steps(run, build_model(run), examples, "cpu")
    batches = run.made_task().batches(examples)
    if isinstance(batches, RowBatches) and task == "classify":
        seen = np.bincount(np.concatenate([batches.order.of(step) for step in range(steps * accumulation)]))
        assert seen.min() >= int(epochs) and seen.sum() - 4 * accumulation < epochs * len(seen) <= seen.sum()
    assert steps == -(-round(epochs * batches.steps_per_epoch, 6) // accumulation)  # type: ignore[attr-defined]


def test_a_given_budget_takes_the_place_of_the_configurations(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=7)
    longer = changed(run, "training.epochs=2").training
    assert (longer.steps, longer.epochs) == (None, 2)
    assert changed(run, "training.seconds=null").training == run.training
    with pytest.raises(ConfigError, match=r"training\.steps: a budget of 3 steps and one of 2 epochs\. Give one of"):
        changed(run, "training.epochs=2", "training.steps=3")


def test_budgets_that_contradict_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.steps: a budget of 20 steps and one of 2 epochs\. Give one"):
        tiny_run(tmp_path, LSTM, epochs=2)


def saved_lstm(folder: Path) -> Path:
    text = write_text(folder).read_text()
    tokenizer = CharacterTokenizer.train([text])
    torch.manual_seed(5)
    model = parse_model({**LSTM, "vocab_size": tokenizer.vocab_size}).build()
    return weft.save(model, folder / "saved", tokenizer=tokenizer)


def test_a_configuration_begins_with_the_model_and_tokenizer_of_a_folder(tmp_path: Path) -> None:
    saved = saved_lstm(tmp_path)
    plain = {**tiny_run(tmp_path, {**ATTENTION, "head": {"kind": "pooled", "n_classes": 2}}).dump(),
             "tokenizer": {"kind": "bytes"}}
    run = weft.read_run(plain, start=saved)
    before = weft.load(saved)
    held = run.tokenizer.from_file()
    assert before.tokenizer is not None and held is not None and held.fingerprint() == before.tokenizer.fingerprint()
    assert run.model.model_copy(update={"head": None}) == before.config and run.model.dump()["head"]["n_classes"] == 2
    assert run.training == parse_run(plain).training
    (tmp_path / "run.yaml").write_text(json.dumps(plain))
    assert weft.read_run(tmp_path / "run.yaml", start=saved) == run
    again = weft.read_run({"model": {"context": 4}}, ["model.embedding.dropout=0.5"], start=saved).model
    assert again.context == 4 and again.dump()["embedding"]["dropout"] == 0.5
    with pytest.raises(CheckpointError, match="nowhere"):
        weft.read_run(plain, start=tmp_path / "nowhere")


def test_python_takes_plain_data_and_models_in_memory(tmp_path: Path) -> None:
    saved = saved_lstm(tmp_path)
    plain = {**tiny_run(tmp_path, LSTM, steps=3).dump()}
    loaded = weft.load(saved)
    first = weft.train(plain, start=loaded, out=tmp_path / "first")
    second = weft.train(plain, start=saved, out=tmp_path / "second")
    assert same_weights(first.model, second.model) and (tmp_path / "first/start/config.json").is_file()
    assert same_weights(weft.train(tmp_path / "first").model, first.model), "a run's folder is that run"
    longer = weft.train(tmp_path / "first", "training.steps=4")
    assert longer.steps == 4 and longer.checkpoint.parent.parent == tmp_path / "first"
    weft.save(first.model, tmp_path / "kept", tokenizer=ByteTokenizer())
    assert same_weights(weft.load(tmp_path / "kept").model, first.model)
    with pytest.raises(OccupiedError):
        weft.save(first.model, tmp_path / "kept")
    with pytest.raises(InputError, match=r"model: a Linear is no model of Weft\. Give what weft\.load returned"):
        weft.train(plain, start=nn.Linear(2, 2), out=tmp_path / "none")


def test_the_public_names_are_listed() -> None:
    assert set(weft.__all__) <= set(dir(weft)) and {"save", "train", "__version__"} <= set(dir(weft))


def test_python_says_what_the_command_eval_is_called() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'eval'; the command `weft eval` is weft\.evaluate here"):
        _ = weft.eval
