"""A valid run of two steps of every task but `next_token`, and the files that it reads."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from tasks.task_runs import CLASSES, CROSS, ENCODER, ENCODER_DECODER, LINES, PAIRS

CAUSAL: dict[str, Any] = {"kind": "decoder", "d_model": 8, "context": 32, "blocks": [
    {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "mlp", "d_ff": 16}]}]}
PREFIXED = {**CAUSAL, "blocks": [{"kind": "pre", "layers": [
    {"kind": "attention", "n_heads": 2, "mask": "causal | prefix"}]}]}
POOLED = {**ENCODER, "context": 48, "head": "pooled"}
LONG = {**ENCODER, "context": 256, "position": "sinusoidal", "head": "pooled"}
IMAGE = {"height": 4, "width": 4}
PICTURES: dict[str, Any] = {"kind": "image_encoder", "image": IMAGE, "patch": [2, 2], "d_model": 8, "head": "pooled",
                            "blocks": ENCODER["blocks"]}
TALKS = [{"messages": [{"role": "user", "content": f"add {i}"}, {"role": "assistant", "content": f"It is {i}."}]}
         for i in range(20)]
CHOICES = [{"prompt": f"add {i}", "chosen": f" it is {i}", "rejected": f" it is {i + 1}"} for i in range(20)]
WORDS = [{"words": ["Ada", "met", f"Bob{i}"], "labels": ["B-PER", "O", "B-PER" if i % 2 else "O"]} for i in range(20)]
VALUES = [{"text": f"line {i} {'more ' * (i % 4)}", "value": i / 7} for i in range(20)]
RUNS: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "answers": ({"kind": "answers", "template": "chatml"}, {**CAUSAL, "context": 200}, "talks.jsonl"),
    "classify": ("classify", POOLED, "classes.jsonl"),
    "classify_images": ("classify_images", PICTURES, "pictures.npz"),
    "classify_tokens": ("classify_tokens", {**ENCODER, "context": 48, "head": "per_token"}, "words.jsonl"),
    "induction_heads": ({"kind": "induction_heads", "length": 16, "held_out": 20}, CAUSAL, None),
    "listops": ({"kind": "listops", "min_length": 3, "max_length": 20, "max_depth": 4, "max_args": 3, "held_out": 20},
                CAUSAL, None),
    "masked": ("masked", {**ENCODER, "head": "masked_token"}, "lines.txt"),
    "mqar": ({"kind": "mqar", "length": 16, "pairs": 2, "symbols": 10, "held_out": 20}, CAUSAL, None),
    "pathfinder": ({"kind": "pathfinder", "size": 16, "contour": 2, "held_out": 6, "rows": 12}, LONG, None),
    "pixels": ({"kind": "pixels", "images": 8}, LONG, "pictures.npz"),
    "preferences": ({"kind": "preferences", "template": "chatml"}, CAUSAL, "choices.jsonl"),
    "prefix_lm": ("prefix_lm", PREFIXED, "lines.txt"),
    "pretrain_layers": ({"kind": "pretrain_layers", "batches_per_layer": 4},
                        {"kind": "dense", "image": IMAGE, "widths": [6, 5], "back": {"tied": True}}, "pictures.npz"),
    "regression": ("regression", POOLED, "values.jsonl"),
    "selective_copying": ({"kind": "selective_copying", "length": 12, "data_tokens": 3, "symbols": 5, "held_out": 20},
                          CAUSAL, None),
    "sequence_to_sequence": ("sequence_to_sequence", ENCODER_DECODER, "pairs.jsonl"),
    "span_corruption": ("span_corruption", {**ENCODER_DECODER, "blocks": [{"kind": "pre", "layers": CROSS}]},
                        "lines.txt"),
}
"""The task, the model and the file of each run."""


def write(folder: Path) -> None:
    """Write the configuration of every run, ``TASK.json``, and the files."""
    folder.mkdir()
    for name, rows in (("talks", TALKS), ("classes", CLASSES), ("words", WORDS), ("choices", CHOICES),
                       ("values", VALUES), ("pairs", PAIRS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (folder / "lines.txt").write_text("\n".join(LINES), "utf-8")
    labels = np.arange(20) % 2
    held = io.BytesIO()
    np.savez(held, images=np.full((20, 4, 4), 90, np.uint8) * labels[:, None, None].astype(np.uint8), labels=labels)
    (folder / "pictures.npz").write_bytes(held.getvalue())
    for name, (task, model, file) in RUNS.items():
        data = {"data": {"path": f"tasks/{file}", "validation": 0.25}} if file else {}
        start = {"start": "run", "model": {"context": 200}} if name == "preferences" else {"model": model}
        run = {"task": task, **start, **data, "training": {"steps": 2, "batch_size": 2,
                                                           "compute": {"matmul": "default"}},
               "report": {"eval_batches": 1}}
        (folder / f"{name}.json").write_text(json.dumps(run, indent=1), "utf-8")


def keys(name: str) -> list[str]:
    """The keys of a run's task and model, to be given other values."""
    task, model, _ = RUNS[name]
    fields = [f"task.{key}" for key in task] if isinstance(task, dict) else ["task.kind"]
    return ["task", *fields, *(f"model.{key}" for key in model)]
