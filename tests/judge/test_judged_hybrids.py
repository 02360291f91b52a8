"""Hybrids of Weft's parts, drawn at random, judged as modules of a stranger: none is accused. ``make judge`` draws
300."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from judged_in_process import InProcess
from weft.core.base_model import built_empty
from weft.core.declarations import Trait
from weft.core.model import ModelConfig
from weft.core.part import traits_of
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import judge_file
from weft.laws import Hybrids
from weft.mixers.cross_attention import CrossAttention

COUNT = 300 if os.environ.get("WEFT_JUDGE") else 4
FILE = """
import torch
from weft.core.model import parse_model

class Model(torch.nn.Module):
    vocab_size, context = {vocab_size}, {context}

    def __init__(self):
        super().__init__()
        torch.manual_seed({seed})
        self.decoder = parse_model({config}).build()

    def forward(self, ids):
        return self.decoder(ids).y

model = Model
"""
"""A module that happens to be built by Weft; of rows of its own context, so that a judge takes a second for it."""


@pytest.fixture(scope="module")
def hybrids() -> Iterator[dict[str, Any]]:
    """Configurations one after the other; the registry is searched once. Left out are those that are no language models
    of rows alone: which read a memory, or compute an early token otherwise in a longer row, as dynamic scalings of
    rotations do (the museum's ``scaled_positions``)."""
    drawn = Hybrids()
    return (config.dump() for config in map(drawn.draw, itertools.count()) if of_rows_alone(config))


def of_rows_alone(config: ModelConfig) -> bool:
    model = built_empty(config)
    return Trait.DECLARED_LENGTH not in traits_of(model) and not any(
        isinstance(module, CrossAttention) for module in model.modules())


@pytest.mark.parametrize("place", range(COUNT))
def test_a_lawful_hybrid_is_not_accused(place: int, hybrids: Iterator[dict[str, Any]], tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    monkeypatch.setattr("weft.judge.case.SMALL", -1)  # one process has one source of random numbers
    config = next(hybrids)
    path = tmp_path / "hybrid.py"
    path.write_text(FILE.format(seed=place, config=config, vocab_size=config["vocab_size"], context=config["context"]),
                    encoding="utf-8")
    verdict = judge_file(Judged(path), limits=FileLimits(seconds=600))
    assert verdict.verdict == "lawful", f"{config}\n{verdict.model_dump_json(indent=1)}"
