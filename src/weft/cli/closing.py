"""The line that ends a command in a terminal: what to do next with what it has made."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from weft.cli.text import console

Given: TypeAlias = Mapping[str, Any]
"""The arguments and options that a command was called with, by name."""


def say_next(line: Callable[[Given], str], given: Given) -> None:
    """Print a command's closing line on standard error, if that is a terminal and no JSON was asked for."""
    if not given.get("json") and sys.stderr.isatty():
        # Not typer.secho: a terminal's stream writes escape sequences visibly, whoever prints them, but a console's.
        console(err=True).print(f"next: {line(given)}", style="dim", soft_wrap=True)


def is_folder(target: object) -> bool:
    """Whether an argument names a folder."""
    return Path(str(target)).is_dir()


def word(value: object) -> str:
    """A path or name as a shell takes it."""
    return shlex.quote(str(value))
