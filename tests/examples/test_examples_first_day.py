"""`make run`, small: four models side by side, and a sample from each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SMALL = ["data.max_bytes=100000", "training.batch_size=2", "training.context=16", "tokenizer.vocab_size=300",
         "report.eval_batches=1", "report.eval_every=1000"]
MODELS = ["ngram", "lstm", "transformer", "s4d"]


def first_day(folder: Path, *changes: str) -> subprocess.CompletedProcess[str]:
    """The example, in a folder of its own."""
    command = [sys.executable, str(ROOT / "examples/first_day.py"), "--seconds", "0.3", "--out", "runs", *changes]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_four_models_fall_side_by_side_and_each_gives_a_sample(tmp_path: Path) -> None:
    done = first_day(tmp_path, *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.split() == ["seconds", *MODELS])
    rows = [[float(cell) for cell in line.split()] for line in lines[begin + 1:lines.index("", begin)]]
    assert rows and all(len(row) == 5 for row in rows)
    assert all(0 < cell < 8 for cell in rows[-1][1:]), "every model beats the uniform distribution over bytes"
    for model in MODELS:
        at = lines.index(f"{model} goes on from 'def main(':")
        assert lines[at + 1].startswith("def main(")
        assert (tmp_path / "runs" / model / "checkpoints").is_dir()


def test_a_model_that_cannot_be_trained_is_told_and_fails_the_whole(tmp_path: Path) -> None:
    done = first_day(tmp_path, "data.path=absent.txt")
    assert done.returncode == 1
    for model in MODELS:
        assert f"{model} failed: absent.txt: no such file or folder. Check the path." in done.stdout
