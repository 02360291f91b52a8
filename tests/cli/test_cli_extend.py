"""`weft extend`: the table that it prints, its JSON, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft as library


def test_the_table_shows_every_length_before_and_after(weft: Any, run: Path, workplace: Path, tmp_path: Path) -> None:
    told = weft("extend", run, "--context", "32", "--scaling", "linear", "--out", tmp_path / "out",
                "--last-tokens", "200", "--data", workplace / "text.txt")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert "linear: factor 4.0; trained context 8 tokens, now 32" in lines
    head = next(index for index, line in enumerate(lines) if line.split() == ["context", "before", "rescaled"])
    rows = [line.split() for line in lines[head + 1: head + 5]]
    assert [row[0] for row in rows] == ["4", "8", "16", "32"] and all(len(row) == 3 for row in rows)
    assert lines[-1] == f"use {tmp_path / 'out/rescaled'}"
    assert max(map(len, lines[:-1])) <= 80


def test_json_and_training(weft: Any, run: Path, workplace: Path, tmp_path: Path) -> None:
    found = weft("extend", run, "training.optimizer.lr=0.5", "--context", "16", "--out", tmp_path / "out",
                 "--last-tokens", "100", "--steps", "2", "--data", workplace / "text.txt", "--json").json()
    assert [stage["name"] for stage in found["stages"]] == ["before", "rescaled", "tuned"]
    assert (found["tuning"]["steps"], found["tuning"]["learning_rate"], found["lengths"]) == (2, 0.5, [4, 8, 16])
    assert library.load(found["checkpoint"]).config.context == 16


def test_refusals(refused: Callable[..., str], run: Path, workplace: Path, tmp_path: Path) -> None:
    options = [run, "--out", tmp_path / "out", "--data", workplace / "text.txt"]
    assert "8 tokens are no more than the model's context of 8" in refused("extend", *options, "--context", "8")
    assert "Did you mean 'longrope'" in refused("extend", *options, "--context", "9", "--scaling", "longrop")
    assert "--lengths" in refused("extend", *options, "--context", "9", "--lengths", "8,x")
    assert "no training was requested" in refused("extend", *options, "--context", "9", "seed=3")
    assert "the method 'yarn' has no search" in refused("extend", *options, "--context", "9", "--search", "9")
    assert "unknown key 'stepz'" in refused("extend", run, "training.stepz=1", *options[1:], "--context", "9",
                                            "--steps", "1")
    assert not (tmp_path / "out").exists()
