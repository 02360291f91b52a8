"""Runs whose rows cannot be cut among processes are refused, by field and with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from parallel.table.subjects import run_of
from weft.mixers.lstm import LSTMConfig
from weft.tasks.classify import ClassifyConfig
from weft.training.among_ranks import cutting_problems
from weft.training.config import RunConfig
from weft.training.run_training import build_model


def problems(config: RunConfig) -> list[str]:
    return cutting_problems(config, config.made_task(), build_model(config))


def cut(**training: Any) -> RunConfig:
    return run_of(LSTMConfig(), training={"mesh": {"context": 2}, **training})


@pytest.mark.parametrize(("config", "expected"), [
    (cut(carry_state=True), "training.carry_state: with training.mesh.context 2, whose last process would have the "
     "state that the first one goes on from. Leave out one of them."),
    (cut(context=1), "training.context: rows of 1 tokens for 2 processes, each of which computes a piece "
     "(training.mesh.context 2). Choose at least 2."),
], ids=["carry_state", "short rows"])
def test_settings_that_rows_in_pieces_exclude(config: RunConfig, expected: str) -> None:
    assert problems(config) == [expected]


def test_a_task_that_is_no_sum_over_tokens() -> None:
    config = cut().model_copy(update={"task": ClassifyConfig()})
    assert problems(config) == [
        "task: the loss of 'classify' is not a sum over the tokens of one row, so rows cannot be cut among processes "
        "(training.mesh.context 2). Set context to 1."]
    assert problems(cut()) == []


def test_without_the_axis_nothing_is_asked() -> None:
    assert problems(run_of(LSTMConfig(), training={"carry_state": True})) == []
