"""Induction heads are learned by two layers of attention, and not by one, nor by an n-gram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.training import parse_run, train

TASK = {"kind": "induction_heads", "length": 12, "symbols": 5, "held_out": 200}


def accuracy(model: dict[str, Any], task: dict[str, Any], folder: Path) -> float:
    run = parse_run({"task": task, "model": {"context": 12, **model},
                     "training": {"steps": 250, "batch_size": 64, "compute": {"matmul": "default"},
                                  "optimizer": {"lr": 0.01, "weight_decay": 0.0}},
                     "report": {"eval_every": 250, "eval_batches": None}})
    return train(run, folder / "run").validation.measures["accuracy"]


@pytest.mark.parametrize("layers", [2, 1])
def test_attention_needs_two_layers(layers: int, tmp_path: Path) -> None:
    """The first layer tells each token which one stands before it (Olsson et al. 2022): without it the trigger finds
    itself, and not what followed it."""
    block = {"kind": "pre", "norm": "rmsnorm", "layers": [{"kind": "attention", "n_heads": 1, "position": "rope"}]}
    found = accuracy({"kind": "decoder", "d_model": 24, "norm": "rmsnorm", "blocks": [block] * layers}, TASK, tmp_path)
    assert found >= 0.99 if layers == 2 else found < 0.7  # 0.25 by chance; a neighbour is often seen by its distance


def test_an_n_gram_cannot(tmp_path: Path) -> None:
    found = accuracy({"kind": "ngram", "order": 4}, {**TASK, "rows": 2000}, tmp_path)
    assert found < 0.25 + 5 * 0.031  # chance of 1 in 4 on 200 rows, and what is answered by the three last tokens
