"""A run that began before there were tasks, heads and rewrites still loads, and goes on to the weights that it came to
then. Its folder was written by the version before, at step 10 of 20, and ``end.safetensors`` at step 20."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.checkpoints import load_checkpoint
from weft.checkpoints.tensors import read_tensors
from weft.core.model import LanguageModel
from weft.training import Validated, load_run, train
from weft.training.folder import best_of

STORED = Path(__file__).parent / "run_before_tasks"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(STORED, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def test_its_model_is_the_model_that_it_was(place: Path) -> None:
    record = json.loads((place / "run/run.json").read_text())
    loaded = load_checkpoint(place / "run")
    assert isinstance(loaded.model, LanguageModel) and loaded.model.head is None
    assert loaded.config.dump() == record["config"]["model"], "a state's owner is a hash of this"
    stored = read_tensors(place / "run/checkpoints/00000010/model.safetensors")
    assert all(torch.equal(loaded.model.state_dict()[name], tensor) for name, tensor in stored.items())
    assert best_of([place / "run/checkpoints/00000010"]) == place / "run/checkpoints/00000010"


def test_its_configuration_says_the_next_token(place: Path) -> None:
    run = load_run(place / "run/config.yaml")
    assert (run.task.kind, run.start) == ("next_token", None)


def test_it_goes_on_to_the_weights_that_it_came_to_then(place: Path) -> None:
    seen: list[Any] = []
    result = train(load_run(place / "run/config.yaml"), place / "run", resume=True, allow_inexact=True,
                   on_event=seen.append)
    ended = read_tensors(place / "end.safetensors")
    assert result.steps == 20
    for name, tensor in ended.items():
        # Ten steps in float64 on any processor; on the one that wrote it the bits are the same.
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)
    assert [event.step for event in seen if isinstance(event, Validated)] == [20]
