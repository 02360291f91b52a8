"""Writes the catalogue and the command-line pages from the code."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby
from pathlib import Path

from weft.analysis import catalogue

COMMANDS = ("list", "doctor", "config show", "config schema", "plan", "check", "train", "eval", "generate", "score")


def write_pages(folder: Path) -> None:
    """Write both pages into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalogue.md").write_text(catalogue_page(), encoding="utf-8")
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")


def catalogue_page() -> str:
    """Every registered part by group: kind, what it is, source, traits, state."""
    lines = ["# Catalogue", "", "Everything that `weft list` shows.", ""]
    for group, entries in groupby(catalogue(), key=lambda entry: entry.group):
        lines += [f"## {group}", "", "| kind | what | source | traits | state |", "| --- | --- | --- | --- | --- |"]
        for entry in entries:
            traits = ", ".join(entry.traits)
            cells = (f"`{entry.kind}`", entry.summary, entry.source, traits, entry.state_size)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def cli_page() -> str:
    """The help of every command."""
    lines = ["# Command line", "", "Exit codes: 0 done, 1 failed, 2 the request was at fault, 130 interrupted.", ""]
    for command in COMMANDS:
        shown = subprocess.run([sys.executable, "-m", "weft", *command.split(), "--help"], capture_output=True,
                               text=True, check=True, env={"COLUMNS": "100", "PATH": ""}).stdout
        lines += [f"## weft {command}", "", "```text", shown.rstrip(), "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_pages(Path(__file__).parent / "_generated")
