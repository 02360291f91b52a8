"""Small models, files and runs for the tests of tasks on hidden tokens, pairs and classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from weft.core.model import Model, parse_model
from weft.tasks import TaskSettings
from weft.training import RunConfig, parse_run

BIDIRECTIONAL = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
ENCODER: dict[str, Any] = {
    "kind": "encoder", "d_model": 8, "context": 16, "position": "learned",
    "blocks": [{"kind": "pre", "layers": [BIDIRECTIONAL, {"kind": "mlp", "d_ff": 16}]}]}
CROSS = [{"kind": "attention", "n_heads": 2}, {"kind": "cross_attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 16}]
ENCODER_DECODER: dict[str, Any] = {
    "kind": "encoder_decoder", "d_model": 8, "context": 16, "position": "learned",
    "blocks": [{"kind": "pre", "layers": CROSS}], "encoder": ENCODER}
CLASSES = [{"text": f"{'good' if i % 3 else 'bad'} number {i}" + " more" * (i % 5), "label": "yes" if i % 3 else "no"}
           for i in range(40)]
PAIRS = [{"source": f"{'ab' * (i % 4)}c", "target": f"c{'ba' * (i % 4)}é"} for i in range(40)]
LINES = [f"line {i} of {'some ' * (i % 4)}text" for i in range(60)]
END = 256


def built(config: dict[str, Any], **changes: Any) -> Model:
    """A model in float64, with weights large enough for decided predictions."""
    torch.manual_seed(0)
    return parse_model({**config, "embedding": {"std": 1.0}, **changes}).build(None).double()


def settings(**values: Any) -> TaskSettings:
    """Settings of a task with small batches."""
    return TaskSettings(**{"rows": 4, "context": 16, **values})


def records_file(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> Path:
    """A file of records, one a line."""
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_of(folder: Path, task: Any, model: dict[str, Any], *, steps: int = 6, path: Path | None = None,
           **data: Any) -> RunConfig:
    """A run of a few steps on a file, with checkpoints on the way."""
    given = records_file(folder, {"classify": CLASSES}.get(task, PAIRS)) if path is None else path
    return parse_run({"task": task, "model": model, "data": {"path": str(given), **data},
                      "training": {"steps": steps, "batch_size": 4, "optimizer": {"lr": 1e-2},
                                   "compute": {"matmul": "default"}},
                      "report": {"eval_every": 3, "eval_batches": 2}})


def lines_file(folder: Path) -> Path:
    """A text of lines."""
    path = folder / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path
