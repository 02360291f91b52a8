"""Hybrids of Weft's parts, drawn at random, judged as modules of a stranger: none is accused. ``make judge`` draws 300."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from judged_in_process import InProcess
from weft.judge.questions import Judged, Limits
from weft.judge.referee import judge_file
from weft.laws import Hybrids

SEEDS = range(300 if os.environ.get("WEFT_JUDGE") else 4)
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
        return self.decoder(ids).values

model = Model
"""
"""A module that happens to be built by Weft; of rows of its own context, so that a judge takes a second for it."""


@pytest.fixture(scope="module")
def hybrids() -> Hybrids:
    """Made once: searching the registry takes longer than drawing from it."""
    return Hybrids()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lawful_hybrid_is_not_accused(seed: int, hybrids: Hybrids, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                        ) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    config = hybrids.draw(seed).dump()
    path = tmp_path / "hybrid.py"
    path.write_text(FILE.format(seed=seed, config=config, vocab_size=config["vocab_size"], context=config["context"]),
                    encoding="utf-8")
    verdict = judge_file(Judged(path), limits=Limits(seconds=600))
    assert verdict.verdict == "lawful", f"{config}\n{verdict.model_dump_json(indent=1)}"
