"""Runs that get SIGKILL end, resumed, in the same bytes: at random moments, and at every moment that a file changes."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from training.disturbed_runs import KINDS, Trainers, last_bytes, losses, run_of, timed_end, write_documents
from weft.training import RunConfig, parse_run, train

KILLS = 2
"""Of each kind here; `recipes/resume` has more."""


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    server = Trainers()
    yield server
    server.close()


@pytest.mark.parametrize("name", KINDS)
def test_sigkill_at_random_moments(tmp_path: Path, trainers: Trainers, name: str) -> None:
    run = run_of(name, write_documents(tmp_path))
    seconds = timed_end(trainers, run, tmp_path / "whole")
    chance, killed = random.Random(name), 0
    while killed < KILLS:
        process = trainers.start(run, tmp_path / "killed")
        time.sleep(chance.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)  # one that has ended waits for its end to be asked for
        code = trainers.end()
        assert code in (0, -signal.SIGKILL)
        killed += 1
    timed_end(trainers, run, tmp_path / "killed")
    assert last_bytes(tmp_path / "killed") == last_bytes(tmp_path / "whole")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


def moments(folder: Path, into: Path, patch: pytest.MonkeyPatch) -> None:
    """Keep a copy of the folder as it is before every change of a file from now on: what SIGKILL would leave there."""
    copying = False

    def watched(change: Any) -> Any:
        def changed(*args: Any, **options: Any) -> Any:
            nonlocal copying
            if not copying and folder.exists():
                copying = True
                shutil.copytree(folder, into / f"{len(list(into.iterdir())):03d}")
                copying = False
            return change(*args, **options)
        return changed

    into.mkdir()
    for name in CHANGES:
        patch.setattr(os, name, watched(getattr(os, name)))


def different(folders: list[Path]) -> list[Path]:
    """One of all folders with the same content, the lock aside."""
    seen: dict[str, Path] = {}
    for folder in folders:
        content = sorted((str(path.relative_to(folder)), path.read_bytes() if path.is_file() else b"")
                         for path in folder.rglob("*") if path.name != ".lock")
        seen.setdefault(hashlib.sha256(repr(content).encode()).hexdigest(), folder)
    return list(seen.values())


def require_same_end(run: RunConfig, left: Path, whole: Path) -> None:
    train(run, left, resume=any(left.iterdir()))  # a folder that is only made is no run yet
    assert last_bytes(left) == last_bytes(whole), left
    assert losses(left) == losses(whole), left
    assert not [path for path in left.rglob(".*") if path.name != ".lock"], "nothing is left lying about"
    shutil.rmtree(left)


def test_a_kill_at_every_change_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("lstm, carried state", write_documents(tmp_path), steps=4, eval_every=2)
    whole = tmp_path / "whole"
    with monkeypatch.context() as patch:
        moments(whole, tmp_path / "first", patch)
        train(run, whole)
    left = different(sorted((tmp_path / "first").iterdir()))
    # Drafts half written, checkpoints in place, the first one disappearing: all of these are among them.
    assert len(left) > 15
    assert any(list(folder.glob("checkpoints/.*.draft")) for folder in left)
    assert not (left[0] / "run.json").exists(), "the first is from before the run stood"
    for folder in left:
        require_same_end(run, folder, whole)


def test_a_kill_at_every_change_of_a_file_while_a_run_is_resumed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a checkpoint was damaged, and one had stepped aside for a replacement that never came."""
    run = run_of("lstm, carried state", write_documents(tmp_path), steps=4, eval_every=2)
    run = parse_run(run.dump(), ["report.keep=3"])
    whole, again = tmp_path / "whole", tmp_path / "again"
    train(run, whole)
    shutil.copytree(whole, again)
    (again / "checkpoints/00000004/model.safetensors").write_bytes(b"damaged")
    (again / "checkpoints/.00000002.1.draft").mkdir()
    (again / "checkpoints/00000002").rename(again / "checkpoints/.00000002.1.draft/weft-before")
    with monkeypatch.context() as patch:
        moments(again, tmp_path / "second", patch)
        train(run, again, resume=True)
    left = different(sorted((tmp_path / "second").iterdir()))
    assert len(left) > 5
    for folder in left:
        require_same_end(run, folder, whole)
