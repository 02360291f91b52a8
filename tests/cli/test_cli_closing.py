"""The line that ends a command in a terminal."""

from __future__ import annotations

import inspect
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperCommand, TyperGroup

from weft.cli.closing import word
from weft.cli.main import WeftGroup
from weft.cli.options import guarded


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def commands() -> dict[str, TyperCommand]:
    """Every command by what is typed behind ``weft``."""
    found: dict[str, TyperCommand] = {}
    for name, lazy in WeftGroup.lazy.items():
        command = lazy.load(name)
        inner = command.commands if isinstance(command, TyperGroup) else {"": command}
        found |= {f"{name} {each}".strip(): known for each, known in inner.items() if isinstance(known, TyperCommand)}
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_a_line_and_what_it_names_exists(name: str, tmp_path: Path) -> None:
    command, known = commands()[name], commands()
    assert command.callback is not None
    guard: Any = command.callback  # typer wraps what `guarded` returns
    while "closing" not in (inside := inspect.getclosurevars(guard).nonlocals):
        guard = guard.__wrapped__
    closing = inside["closing"]
    given: dict[str, Any] = {each.name: None for each in command.params if each.name is not None}
    folders = [{"out": tmp_path / out, "to": to, "target": target, "config": target, "checkpoint": target,
                "method": method, "file": target, "folder": target, "kind": kind}
               for out, to, target, method, kind in (("a", "hf", str(tmp_path), "elo", None),
                                                     ("a.gguf", "gguf", "my.yaml", "bradley-terry", "attention"),
                                                     ("a", "peft", "s4d", "elo", None),
                                                     ("a.arpa", None, "s4d", "elo", None))]
    for more in folders:
        line = closing({**given, **{key: value for key, value in more.items() if key in given}})
        for typed in re.findall(r"weft ([^,;]+)", line):
            words = typed.split()
            inner = " ".join(words[:2])
            asked = known[inner if inner in known else words[0]]
            options = {option for each in asked.params for option in each.opts}
            assert {word for word in words if word.startswith("--")} <= options, line


def test_it_is_printed_in_a_terminal_alone_and_never_beside_json(monkeypatch: pytest.MonkeyPatch) -> None:
    @guarded(lambda given: f"weft eval {word(given['checkpoint'])} --data FILE measures the model on a whole text")
    def score(*, checkpoint: Path, json: bool) -> None:
        print("nats", checkpoint, json)

    def told(screen: io.StringIO, *, json: bool) -> str:
        monkeypatch.setattr("sys.stderr", screen)
        score(checkpoint=Path("a run"), json=json)
        return screen.getvalue()

    assert "next: weft eval 'a run' --data FILE measures the model on a whole text" in told(Terminal(), json=False)
    assert told(Terminal(), json=True) == ""
    assert told(io.StringIO(), json=False) == ""


@pytest.mark.parametrize("columns", [40, 100])
def test_a_command_writes_no_escape_sequence_as_text_in_a_terminal(columns: int) -> None:
    """A pseudo-terminal: the closing line had stood between `\\x1b[2m` and `\\x1b[0m`, written out."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
    with subprocess.Popen([sys.executable, "-m", "weft", "list", "mask"], stdin=theirs, stdout=theirs, stderr=theirs,
                          env=environment, close_fds=True) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so that nobody writes there any more
                break
            if not part:
                break
            parts.append(part)
        os.close(ours)
    shown = b"".join(parts).decode()
    assert process.returncode == 0
    assert "\x1b[2m" in shown, "the line is dim"
    assert "\\x1b" not in shown and "\\u" not in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "next: a configuration names a part as its kind; weft config show transformer shows one" in plain
