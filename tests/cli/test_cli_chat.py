"""``weft chat`` and ``weft generate --messages``."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import weft as library
from weft.cli.main import app

QUICK = ("--template", "plain", "--greedy", "--max-new-tokens", "3")


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A file of messages that ends with one of the user."""
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "line 1"}]), "utf-8")
    return path


def test_messages_are_answered_in_order_with_the_state_kept(weft: Any, run: Path) -> None:
    found = weft("chat", run, *QUICK, "--system", "s", "--message", "line 1", "--message", "line 2", "--json").json()
    assert [turn["message"] for turn in found["turns"]] == ["line 1", "line 2"]
    assert [message["role"] for message in found["messages"]] == ["system", *["user", "assistant"] * 2]
    first, second = found["turns"]
    assert first["reused_tokens"] == 0 and len(first["tokens"]) == 3
    assert second["reused_tokens"] >= first["prompt_tokens"] - len("Assistant:")
    told = weft("chat", run, *QUICK, "--system", "s", "--message", "line 1")
    assert told.out == f"{first['text']}\n"


def test_without_a_terminal_each_line_is_a_message(weft: Any, run: Path) -> None:
    """Text that comes from a pipe is data, a path or "/exit" alike: only who types commands means them."""
    lines = ["line 1", "/reset", "/etc/hosts", "/exit", "line 2"]
    given = weft("chat", run, *QUICK, *(word for line in lines for word in ("--message", line)), "--json").json()
    piped = CliRunner().invoke(app, ["chat", str(run), *QUICK, "--json"], input="\n\n".join(lines))
    assert piped.exit_code == 0 and json.loads(piped.stdout) == given
    assert [turn["message"] for turn in given["turns"]] == lines
    assert [each["content"] for each in given["messages"] if each["role"] == "user"] == lines, "nothing was forgotten"


def test_a_conversation_can_be_gone_on_with(weft: Any, run: Path, talk: Path) -> None:
    found = weft("chat", run, *QUICK, "--messages", talk, "--message", "more", "--json").json()
    assert [message["content"] for message in found["messages"][:3]] == ["s", "line 1", "more"]


def test_generate_answers_messages_in_the_shape_promised(weft: Any, run: Path, talk: Path) -> None:
    found = weft("generate", run, "--messages", talk, *QUICK, "--json").json()
    row, = found["rows"]
    prompt = "s\n\nUser: line 1\nAssistant:"
    alone = library.generate(run, [prompt], max_new_tokens=3).rows[0]
    assert row["tokens"] == list(alone.tokens) and row["text"] == alone.text


def test_generate_goes_on_with_an_answer_that_is_begun(weft: Any, run: Path, talk: Path) -> None:
    messages = [*json.loads(talk.read_text()), {"role": "assistant", "content": "li"}]
    talk.write_text(json.dumps(messages))
    row, = weft("generate", run, "--messages", talk, *QUICK, "--json").json()["rows"]
    alone = library.generate(run, ["s\n\nUser: line 1\nAssistant: li"], max_new_tokens=3).rows[0]
    assert row["tokens"] == list(alone.tokens)


def test_what_cannot_be_said_is_refused(refused: Any, run: Path, talk: Path, tmp_path: Path) -> None:
    assert "no chat template" in refused("chat", run, "--message", "a")
    assert "--variable: 'x' is not NAME=VALUE" in refused("chat", run, *QUICK, "--variable", "x", "--message", "a")
    assert "messages beside other prompts" in refused("generate", run, "--messages", talk, "--prompt", "a", *QUICK)
    assert "a template without messages" in refused("generate", run, "--template", "plain", "--prompt", "a")
    (tmp_path / "bad.jinja").write_text("{{ raise_exception('Not so.') }}", "utf-8")
    told = refused("chat", run, "--template", tmp_path / "bad.jinja", "--message", "a")
    assert "line 1: the template rejects these messages: Not so. Give messages that it accepts" in told
    assert "only models on the Hub have revisions" in refused("chat", run, *QUICK, "--revision", "v1", "--message", "a")


class Terminal:
    """``weft chat`` in a terminal of its own."""

    def __init__(self, *arguments: str | Path) -> None:
        self._ours, theirs = pty.openpty()
        self.seen = ""
        self._process = subprocess.Popen([sys.executable, "-m", "weft", "chat", *map(str, arguments)], stdin=theirs,
                                         stdout=theirs, stderr=theirs, start_new_session=False,
                                         env={**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"})
        os.close(theirs)

    def until(self, text: str, seconds: float = 60) -> str:
        """Read until ``text`` has come; gives what came before it."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self._ours], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            self.seen += os.read(self._ours, 4096).decode(errors="replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def more(self) -> None:
        """Wait until something has come that was not read yet."""
        if not self.seen:
            self.seen += os.read(self._ours, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        """Type keys."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(2)

    def code(self) -> int:
        """The exit code, once it has left."""
        return self._process.wait(timeout=30)


def test_a_dialogue_in_the_terminal(run: Path, tmp_path: Path) -> None:
    terminal = Terminal(run, "--template", "plain", "--max-new-tokens", "100000", "--greedy")
    terminal.until("> ")
    terminal.type("/help\n")
    terminal.until("Ctrl-C stops an answer")
    terminal.type("/sytsem x\n")
    terminal.until("There is no command /sytsem. Did you mean '/system'?")
    terminal.type("/system be brief\n")
    terminal.until("Takes effect with the next message")
    terminal.until("> ")  # what is typed before the prompt is shown twice, and the answer would seem to have begun
    terminal.type("line 1\n")
    terminal.until("line 1\r\n")
    terminal.more()  # the answer has begun, and goes round for ever: its model is hardly trained, and greedy
    terminal.interrupt()
    terminal.until("(stopped)")
    terminal.until("> ")
    terminal.type(f"/save {tmp_path / 'talk.json'}\n")
    terminal.until("(Saved in ")
    saved = json.loads((tmp_path / "talk.json").read_text("utf-8"))
    assert [message["role"] for message in saved] == ["system", "user", "assistant"]
    assert saved[1]["content"] == "line 1" and saved[2]["content"]
    terminal.type(f"/save {tmp_path / 'talk.json'}\n")
    terminal.until("exists already")
    terminal.type("/undo\n")
    terminal.until("(Removed.)")
    terminal.type("/undo\n")
    terminal.until("(There is no message to remove.)")
    terminal.type("/reset\n")
    terminal.until("(A new conversation.)")
    terminal.until("> ")
    terminal.type("\x04")
    assert terminal.code() == 0
