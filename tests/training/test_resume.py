"""A run that was killed ends in the same weights, bit for bit, as one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint, read_training
from weft.core.errors import CheckpointError, ConfigError, DataError
from weft.training import Event, Notice, Progress, RunConfig, Saved, parse_run, train, trainer


class Killed(BaseException):
    """What stands for SIGKILL: nothing in a run handles it."""


def run_killed_at(run: RunConfig, out: Path, step: int, *, resume: bool = False) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, Progress) and event.step >= step:
            raise Killed

    with pytest.raises(Killed):
        train(run, out, resume=resume, on_event=kill)


RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention, dropout, accumulation": (ATTENTION, {"accumulation": 3}),
    "lstm, carried state": (LSTM, {"carry_state": True, "accumulation": 2}),
    "sgd with momentum": (LSTM, {"optimizer": {"kind": "sgd", "momentum": 0.9, "lr": 0.1}}),
    "sgd without a state": (LSTM, {"optimizer": {"kind": "sgd", "lr": 0.1}}),
    "adafactor": (LSTM, {"optimizer": {"kind": "adafactor"}}),
    "adafactor, unfactored": (ATTENTION, {"optimizer": {"kind": "adafactor_unfactored"}}),
    "muon": (ATTENTION, {"dtype": "bfloat16", "optimizer": {"kind": "muon", "layer_decay": 0.7}}),
    "gradual unfreezing, bfloat16": (LSTM, {"dtype": "bfloat16", "unfreeze": {"until": 0.7, "last_blocks": 1}}),
    "averages": (LSTM, {"average": {"decay": 0.8}, "optimizer": {"kind": "muon"}}),
    "averages, bfloat16": (ATTENTION, {"average": {}, "dtype": "bfloat16"}),
    "bfloat16": (ATTENTION, {"dtype": "bfloat16"}),
    "bfloat16, carried state": (LSTM, {"dtype": "bfloat16", "carry_state": True}),
    "float64": (LSTM, {"dtype": "float64"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    model, settings = RUNS[name]
    run = tiny_run(tmp_path, model, steps=20, **settings)
    whole = train(run, tmp_path / "whole")
    # Killed at step 15: the checkpoint of step 10 stands, steps 11 to 15 are lost and done again.
    run_killed_at(run, tmp_path / "killed", 15)
    assert load_checkpoint(tmp_path / "killed").facts["step"] == 10
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model)
    assert resumed.validation == whole.validation
    ends = [path / "checkpoints/00000020" for path in (tmp_path / "whole", tmp_path / "killed")]
    assert ends[0].joinpath("model.safetensors").read_bytes() == ends[1].joinpath("model.safetensors").read_bytes()
    states = [read_training(path) for path in ends]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


FORGOTTEN: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    "the optimiser's state": ("restore_optimizer", lambda *_args, **_options: None, LSTM, {}),
    "the carried state": ("state_arrays", lambda _state: {}, LSTM, {"carry_state": True}),
    "the seed of dropout": ("seed_step", lambda *_, **__: None, ATTENTION, {}),
}


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_resume_that_forgets_something_ends_in_other_weights(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each thing that is saved is needed, and the comparison above would notice if it were not."""
    function, instead, model, settings = FORGOTTEN[name]
    monkeypatch.setattr(trainer, function, instead)
    run = tiny_run(tmp_path, model, steps=20, **settings)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 15)
    assert not same_weights(train(run, tmp_path / "killed", resume=True).model, whole.model)


def test_killed_twice_and_before_the_first_checkpoint(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION, steps=20)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 5)
    events: list[Event] = []
    run_killed_at(run, tmp_path / "killed", 15, resume=True)
    resumed = train(run, tmp_path / "killed", resume=True, on_event=events.append)
    assert same_weights(resumed.model, whole.model)
    assert not any(isinstance(event, Notice) for event in events)


def test_a_start_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=20)
    run_killed_at(run, tmp_path / "run", 5)
    notices: list[Event] = []
    train(run, tmp_path / "run", resume=True, on_event=lambda e: notices.append(e) if isinstance(e, Notice) else None)
    assert [event.line() for event in notices] == ["no checkpoint had been saved yet: starting from the first step"]


def test_metrics_of_steps_that_are_done_again_are_dropped(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=20)
    run_killed_at(run, tmp_path / "run", 15)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"event": "prog')
    train(run, tmp_path / "run", resume=True)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["event"] == "progress"] == [5, 10, 15, 20]


def test_lines_of_progress_are_those_of_a_run_that_was_not_interrupted(tmp_path: Path) -> None:
    """The checkpoint of step 8 lies inside the interval from 6 to 10."""
    run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.checkpoint_every=4", "report.eval_every=8"])
    train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 10)
    train(run, tmp_path / "killed", resume=True)
    lines = [[(record["step"], record["loss"], record["bits_per_byte"])
              for record in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
              if record["event"] == "progress"] for name in ("whole", "killed")]
    assert lines[0] == lines[1] and len(lines[0]) == 4


def test_a_run_killed_before_it_stood_starts_when_it_is_resumed(tmp_path: Path) -> None:
    """Between the lock and the description there is nothing to go on with, and nothing is lost."""
    run = tiny_run(tmp_path, LSTM, steps=4)
    whole = train(run, tmp_path / "whole")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed/.lock").write_text("12345\n")
    assert same_weights(train(run, tmp_path / "killed", resume=True).model, whole.model)


def test_a_finished_run_can_be_resumed_to_itself(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=4)
    first = train(run, tmp_path / "run")
    again = train(run, tmp_path / "run", resume=True)
    assert same_weights(first.model, again.model)
    assert again.checkpoint == first.checkpoint


def test_a_run_in_seconds_keeps_the_number_of_steps_it_settled_on(tmp_path: Path) -> None:
    run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["training.steps=null", "training.seconds=0.3"])
    killed: list[Path] = []

    def kill(event: Event) -> None:
        if isinstance(event, Saved):
            killed.append(event.path)
            raise Killed

    with pytest.raises(Killed):
        train(run, tmp_path / "run", on_event=kill)
    steps = json.loads((tmp_path / "run/run.json").read_text())["steps"]
    assert train(run, tmp_path / "run", resume=True).steps == steps
    assert killed


def test_another_configuration_or_text_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=4)
    train(run, tmp_path / "run")
    other = parse_run(run.dump(), ["training.optimizer.lr=0.5", "model.blocks.0.layers.0.d_hidden=3"])
    with pytest.raises(ConfigError) as caught:
        train(other, tmp_path / "run", resume=True)
    assert "training.optimizer.lr: 0.5, and the run began with 0.01." in str(caught.value)
    assert "model.blocks.0.layers.0.d_hidden: 3, and the run began with None." in str(caught.value)
    assert "Resume with the configuration of the run" in str(caught.value)

    text = tmp_path / "text.txt"
    text.write_text(text.read_text() + "more\n")
    with pytest.raises(DataError, match=r"the text is not the one that the run began with: it was text\.txt: 1 doc"):
        train(run, tmp_path / "run", resume=True)


def test_a_damaged_description_is_told(tmp_path: Path) -> None:
    run, file = tiny_run(tmp_path, LSTM, steps=1), tmp_path / "run/run.json"
    train(run, tmp_path / "run")
    whole = json.loads(file.read_text())
    for content, reason in (("{", "Expecting property name"), ("3", "it holds int, and the record"),
                            (json.dumps({**whole, "compute": {"matmul": "fast"}}), "compute: cannot be read: threads"),
                            (json.dumps({key: whole[key] for key in whole if key != "steps"}), "steps: Field")):
        file.write_text(content)
        with pytest.raises(CheckpointError, match=rf"run\.json.*{reason}"):
            train(run, tmp_path / "run", resume=True)
