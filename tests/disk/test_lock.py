"""A folder has one writer at a time, and a second one is told who holds it and what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from weft.core.errors import ConfigError, DataError
from weft.disk import lock
from weft.disk.lock import LOCK_FILE, held


def test_a_second_writer_is_refused_until_the_first_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = (rf"out: another process \({os.getpid()}\) is comparing models in {re.escape(str(tmp_path))}, since "
               rf"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC on {re.escape(socket.gethostname())} "
               r"\(weft train 'a b\.yaml' 'x y'\)\. Wait for it, or choose another folder\.")
    monkeypatch.setattr(sys, "argv", ["weft", "train", "a b.yaml", "x\ny"])
    with held(tmp_path, "training"), pytest.raises(ConfigError, match=refusal), held(tmp_path, "comparing models"):
        raise AssertionError("two writers hold one folder")
    with held(tmp_path, "comparing models"):
        number, facts = (tmp_path / LOCK_FILE).read_text().splitlines()
    assert number == str(os.getpid()) and json.loads(facts)["command"] == "weft train 'a b.yaml' 'x\ny'"
    with held(tmp_path, "training"):
        pass


def refusal(folder: Path, content: str) -> str:
    """The message of a second writer where the first one's lock holds ``content``."""
    with held(folder, "training"):
        (folder / LOCK_FILE).write_text(content)
        with pytest.raises(ConfigError) as caught, held(folder, "training"):
            raise AssertionError("two writers hold one folder")
    return caught.value.problems[0]


def test_a_holder_that_no_longer_runs_is_said_to(tmp_path: Path) -> None:
    """What it forked can outlive it, and holds the lock. Of another machine's process nothing is known here."""
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    facts = {"command": "weft train x", "host": socket.gethostname(), "since": "2026-01-02 03:04:05 UTC"}
    told = refusal(tmp_path, f"{gone}\n{json.dumps(facts)}\n")
    assert told == (f"out: another process ({gone}) is training in {tmp_path}, since 2026-01-02 03:04:05 UTC on "
                    f"{socket.gethostname()} (weft train x). That process no longer runs: one that it started still "
                    f"holds the lock. End that one, which `fuser {tmp_path}/.lock` names, or choose another folder.")
    told = refusal(tmp_path, f"{gone}\n{json.dumps({**facts, 'host': 'elsewhere'})}\n")
    assert told.endswith("UTC on elsewhere (weft train x). Wait for it, or choose another folder.")
    assert refusal(tmp_path, f"{os.getpid()}\n").endswith(f"({os.getpid()}) is training in {tmp_path}. Wait for it, or "
                                                          "choose another folder."), "as on a full disk"
    assert "another process (of unknown number) is training" in refusal(tmp_path, "")


def test_an_error_of_the_writer_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError), held(tmp_path, "training"):
        raise KeyError
    with held(tmp_path, "training"):
        pass


@pytest.mark.parametrize("content", ["", "12\n", '12\n{"command": "weft tr'])
def test_a_lock_of_a_full_disk_is_a_lock(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    with held(tmp_path, "training"):
        pass


@pytest.mark.parametrize("content", ["notes\n", "12", "12 13\n", '12\n{"a": "b"}\n', "12\n[]", "12\nx",
                                     "1\n" + "[" * 9_999])
def test_a_file_that_is_no_lock_stays(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    with (pytest.raises(ConfigError, match=r"\.lock is not a lock file of Weft's, and would be overwritten\. Choose"),
          held(tmp_path, "training")):
        raise AssertionError("a user's file has been overwritten")
    assert (tmp_path / LOCK_FILE).read_text() == content


def test_what_is_refused_before_anything_is_written_leaves_no_lock(tmp_path: Path) -> None:
    with pytest.raises(DataError), held(tmp_path, "training"):
        raise DataError("the text is empty.", where="text", remedy="Give another.")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError), held(tmp_path, "training"):
        (tmp_path / "run.json").touch()
        raise DataError("the text has become shorter.", where="text", remedy="Give another.")
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_FILE, "run.json"]


def test_a_lock_that_was_there_before_and_that_of_a_process_which_was_interrupted_stay(tmp_path: Path) -> None:
    """A run that was interrupted before its first step is known by it, and goes on with --resume."""
    with pytest.raises(KeyboardInterrupt), held(tmp_path, "training"):
        raise KeyboardInterrupt
    assert (tmp_path / LOCK_FILE).exists()
    with pytest.raises(DataError), held(tmp_path, "training"):
        raise DataError("the text is empty.", where="text", remedy="Give another.")
    assert (tmp_path / LOCK_FILE).exists()


def test_a_lock_that_is_deleted_while_it_is_taken_is_made_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two processes would hold one folder: one the file that is deleted, one the file in its place."""
    taken, take = [], lock._take

    def deleted(handle: int, folder: Path, doing: str) -> None:
        take(handle, folder, doing)
        if not taken:
            (folder / LOCK_FILE).unlink()
        taken.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(lock, "_take", deleted)
    with held(tmp_path, "training"):
        assert len(taken) == 2 and (tmp_path / LOCK_FILE).stat().st_ino == taken[1]


def test_a_lock_that_cannot_be_written_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk an empty file can still be made."""

    def full(handle: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"), held(tmp_path, "training"):
        raise AssertionError("the lock is not written")
    assert list(tmp_path.iterdir()) == []
