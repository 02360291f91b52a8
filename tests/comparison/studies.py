"""Tiny studies for the tests of comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft import api
from weft.api import config_path
from weft.comparison.jobs import Options
from weft.comparison.progress import StudyListener
from weft.comparison.study import StudyConfig
from weft.comparison.study_result import StudyResult
from weft.comparison.study_runner import run_study
from weft.core.config import parse

ATTENTION: dict[str, Any] = {
    "kind": "decoder", "d_model": 8, "context": 16,
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"},
                                          {"kind": "mlp", "d_ff": 16}]}]}
LSTM: dict[str, Any] = {"kind": "decoder", "d_model": 8, "context": 16, "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
NGRAM: dict[str, Any] = {"kind": "ngram", "order": 3, "context": 16, "end": 256}
MEASURE: dict[str, Any] = {"curve_points": 2, "contexts": [8, 16], "decode_steps": 1, "new_tokens": 3, "resamples": 100}


def write_text(folder: Path, lines: int = 300) -> Path:
    """A file of lines that repeat with small changes."""
    path = folder / "text.txt"
    path.write_text("".join(f"line {i % 17}: the sum of {i % 7} and {i % 5} is {i % 7 + i % 5}\n"
                            for i in range(lines)), encoding="utf-8")
    return path


def study_of(text: Path, models: dict[str, Any], **changes: Any) -> StudyConfig:
    """A study of a few steps, without trials unless it says so. Which products are fastest is not
    measured, which takes longer than the steps."""
    plain: dict[str, Any] = {
        "models": models, "data": {"path": str(text)}, "tokenizer": "bytes", "length": {"steps": 4},
        "training": {"batch_size": 2, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"}},
        "trials": {"count": 1}, "seeds": 1, "measure": MEASURE}
    return parse(StudyConfig, {**plain, **changes})


def run(study: StudyConfig, out: Path, on_progress: StudyListener | None = None) -> StudyResult:
    """Run a study in this process."""
    return run_study(study, out, config_path, Options(threads=1, own_processes=False, command="weft compare test"),
                     on_progress)


def compare(file: str, out: str) -> None:
    """Run the study of a file, each of its runs in a process of its own, and print its progress."""
    api.compare(study=file, out=out, threads=1, on_progress=lambda progress: print(progress.line()))
