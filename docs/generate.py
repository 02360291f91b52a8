"""Writes the catalogue and the command-line pages from the code."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

from weft.analysis import catalogue

COMMANDS = ("list", "doctor", "config show", "config schema", "plan", "check", "train", "eval", "generate", "score")
SCRIPT = "from weft.cli.main import app; app(prog_name='weft')"


def write_pages(folder: Path) -> None:
    """Write both pages into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalogue.md").write_text(catalogue_page(), encoding="utf-8")
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")


def catalogue_page() -> str:
    """Every registered part by group: kind, what it is, source, traits, state."""
    lines = ["# Catalogue", "", "Everything that `weft list` shows; `weft list KIND` tells all fields of one part.", ""]
    for group, entries in groupby(catalogue(), key=lambda entry: entry.group):
        lines += [f"## {group}", ""]
        for entry in entries:
            lines += [f"`{entry.usage}`", f": {_escaped(entry.summary)}", ""]
            facts = {"state": entry.state_size, "traits": ", ".join(entry.traits), "source": entry.source}
            lines += [f"  *{name}:* {_escaped(text)}\\" for name, text in facts.items() if text]
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text of a docstring as MyST: its code keeps its quotes, everything else is taken literally."""
    pieces = text.split("``")
    plain = [re.sub(r"([\\`*_{}\[\]<>#$|~])", r"\\\1", piece) for piece in pieces[::2]]
    code = [f"`{piece}`" for piece in pieces[1::2]]
    return "".join(a + b for a, b in zip(plain, [*code, ""], strict=True))


def cli_page() -> str:
    """The help of every command."""
    lines = ["# Command line", "", "Exit codes: 0 done, 1 failed, 2 the request was at fault, 130 interrupted.", ""]
    for command in COMMANDS:
        shown = subprocess.run([sys.executable, "-c", SCRIPT, *command.split(), "--help"], capture_output=True,
                               text=True, check=True, env={"COLUMNS": "88", "PATH": ""}).stdout
        lines += [f"## weft {command}", "", "```text", shown.rstrip(), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_pages(Path(__file__).parent / "_generated")
