"""Tiny runs and models for the tests of training and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft.tasks import TaskSettings
from weft.tasks.next_token import NextToken, NextTokenConfig
from weft.training import RunConfig, parse_run

LSTM: dict[str, Any] = {"kind": "decoder", "d_model": 12, "context": 8,
                        "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
ATTENTION: dict[str, Any] = {
    "kind": "decoder", "d_model": 12, "context": 8, "embedding": {"dropout": 0.1},
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, "mlp"]}]}


def write_text(folder: Path, size: int = 6000) -> Path:
    """A file of lines that repeat with small changes, so that there is something to learn."""
    path = folder / "text.txt"
    lines = (f"line {i % 17}: the sum of {i % 7} and {i % 5} is {i % 7 + i % 5}\n" for i in range(size))
    text = "".join(line for line, _ in zip(lines, range(size // 33 + 1), strict=False))
    path.write_text(text[:size], encoding="utf-8")
    return path


def tiny_run(folder: Path, model: dict[str, Any], *, steps: int = 20, **training: Any) -> RunConfig:
    """A run of a few steps on a text file. The matrix products are PyTorch's own, since two runs that each measure what
    is fastest may find different ones."""
    settings = {"steps": steps, "batch_size": 4, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"},
                **training}
    report = {"log_every": 5, "eval_every": 10, "eval_batches": 2}
    return parse_run({"model": model, "data": {"path": str(write_text(folder))}, "training": settings,
                      "report": report})


def next_token(*, rows: int = 16, context: int = 8, **settings: Any) -> NextToken:
    """The task of language models, in a run of those settings."""
    return NextToken(NextTokenConfig(), TaskSettings(rows, context, **settings))


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Whether all tensors are equal bit for bit."""
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)
