"""A file of tests that leaves something behind fails, and what it has left is named."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fresh import fresh
from left_behind import left_behind, surroundings
from weft.core.registry import REGISTRY
from weft.laws import LAWS
from weft.masks.expression import MASKS
from weft.ops.forms import OPERATIONS


class Foreign:
    """Stands for a part or a mask of a test; the registries are only read."""


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "the part mixer.own is new": lambda patch: patch.setitem(REGISTRY._parts.setdefault("mixer", {}), "own", Foreign),
    "the mask own is new": lambda patch: patch.setitem(MASKS, "own", Foreign),
    "the file loaded as a plugin weft_plugin_own is new": lambda patch: patch.setitem(
        sys.modules, "weft_plugin_own", sys),
    "the law split is gone": lambda patch: patch.delitem(LAWS, "split"),
    "the forced or observed operation attention is new": lambda patch: patch.setattr(
        OPERATIONS.get("attention"), "_seen", []),
    "the environment variable OWN is new: 1": lambda patch: patch.setenv("OWN", "1"),
    "the setting of Python the current directory was": lambda patch: patch.chdir("/"),
    "the setting of Python sys.argv was": lambda patch: patch.setattr(sys, "argv", ["own"]),
    "the logger weft.own is new: (10,": lambda patch: patch.setattr(logging.getLogger("weft.own"), "level", 10),
}


@pytest.mark.parametrize("line", CHANGES)
def test_what_a_test_changes_is_named_until_it_is_taken_back(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = surroundings()
    with monkeypatch.context() as patch:
        CHANGES[line](patch)
        found = left_behind(before, surroundings())
        assert [each for each in found if each.startswith(line)] and len(found) == 1
    assert not left_behind(before, surroundings())


def test_what_torch_is_set_to_is_named() -> None:
    before = surroundings()
    torch.set_default_dtype(torch.float64)
    try:
        assert left_behind(before, surroundings()) == [
            "the setting of torch the default dtype was torch.float32 and is torch.float64"]
    finally:
        torch.set_default_dtype(torch.float32)


FILES = {"test_a.py": "import os\n\n\ndef test_one():\n    os.environ['OWN'] = '1'\n\n\ndef test_two():\n    pass\n",
         "test_b.py": "import os\n\n\ndef test_three():\n    assert os.environ['OWN'] == '1'\n"}


def run_files(folder: str) -> None:
    """The files of a folder, with the fixtures of all tests."""
    sys.exit(pytest.main(["-p", "conftest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, folder]))


def test_the_file_that_leaves_something_fails_by_name_and_the_one_after_it_does_not(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = fresh(run_files, str(tmp_path), folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 3 passed" in done.stdout and " 1 error" in done.stdout and "ERROR at teardown of test_two" in done.stdout
    assert ("test_a.py leaves behind what other files would find:\n"
            "the environment variable OWN is new: 1") in done.stdout
    assert "test_b.py leaves" not in done.stdout
