"""Run the blocks of a page in this one process: ``weft`` commands through the command line's own entry, Python code in
a namespace of its own for each block."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fresh import check_near
from weft.cli.main import app
from weft.laws import LAWS

ACTIVATE = ". .venv/bin/activate"
"""What makes a fresh shell find the command, in the folder of the clone."""


BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and code of a page's blocks, in order."""
    return BLOCK.findall(page.read_text("utf-8"))


def run_line(line: str) -> None:
    """One command; anything but ``weft ...`` is refused."""
    words = shlex.split(line)
    assert words[0] == "weft", f"not a weft command: {line}"
    with pytest.MonkeyPatch.context() as patch:
        if words[1] == "train" and "compile" in LAWS:  # a plugin's laws again, those of `weft check` before it
            check_near(patch)
        result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    assert result.output, f"{line}: a command that tells nothing"


def run_blocks(blocks: list[tuple[str, str]]) -> None:
    """All blocks, each its language and code, in order. A command that has run in this folder is not run again."""
    ran = {ACTIVATE, ""}  # `test_docs_shell` gives the activation to a shell
    for language, code in blocks:
        if language == "bash":
            for line in code.splitlines():
                if line not in ran:
                    run_line(line)
                    ran.add(line)
        else:
            namespace: dict[str, Any] = {"__name__": "__block__"}
            exec(compile(code, "block", "exec"), namespace)


def run_blocks_near(blocks: list[tuple[str, str]]) -> None:
    """`run_blocks`, whose checks are those of `fresh.check_near`."""
    check_near(pytest.MonkeyPatch())  # the process ends with the blocks
    run_blocks(blocks)
