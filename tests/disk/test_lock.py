"""A folder has one writer at a time, and a second one is told who holds it and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from weft.core.errors import ConfigError
from weft.disk.lock import LOCK_FILE, held


def test_a_second_writer_is_refused_until_the_first_has_left(tmp_path: Path) -> None:
    refusal = (rf"out: another process \({os.getpid()}\) is comparing models in {re.escape(str(tmp_path))}\. "
               "Wait for it, or choose another folder\\.")
    with held(tmp_path, "training"), pytest.raises(ConfigError, match=refusal), held(tmp_path, "comparing models"):
        raise AssertionError("two writers hold one folder")
    with held(tmp_path, "comparing models"):
        assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"


def test_an_error_of_the_writer_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(KeyError), held(tmp_path, "training"):
        raise KeyError
    with held(tmp_path, "training"):
        pass


def test_an_empty_lock_of_an_earlier_version_is_a_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch()
    with held(tmp_path, "training"):
        pass


@pytest.mark.parametrize("content", ["notes\n", "12", "12 13\n"])
def test_a_file_that_is_no_lock_stays(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    with (pytest.raises(ConfigError, match=r"\.lock is not a lock file of Weft's, and would be overwritten\. Choose"),
          held(tmp_path, "training")):
        raise AssertionError("a user's file has been overwritten")
    assert (tmp_path / LOCK_FILE).read_text() == content
