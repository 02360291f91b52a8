"""The dialogue of ``weft chat`` in a terminal: answers as they come, and commands that begin with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, final

import typer

from weft.core.errors import WeftError, nearest

if TYPE_CHECKING:
    from weft.chat.conversation import Conversation

PROMPT = "> "
HELP = """\
/reset        forget all but the system message
/undo         take your last message back, and its answer
/system TEXT  replace the system message; without TEXT, remove it
/save FILE    write the conversation as JSON, for --messages
/help         this list
/exit         leave (also Ctrl-D)
Ctrl-C stops an answer and keeps what was said. A message that begins with a slash: begin with a space."""


@final
class Dialogue:
    """A conversation with whoever sits at the terminal.

    Args:
        conversation: to go on with.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._commands: dict[str, Callable[[str], None]] = {
            "/reset": self._reset, "/undo": self._undo, "/system": self._system, "/save": self._save,
            "/help": lambda _: typer.echo(HELP)}

    def run(self) -> None:
        """Until Ctrl-D or /exit. What cannot be done is told, and the conversation goes on."""
        _edit_lines()
        typer.echo("/help tells the commands, Ctrl-D leaves.")
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo("\n(Ctrl-D or /exit leaves.)")
                continue
            if line.strip() == "/exit":
                return
            if line.strip():
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(line)
            else:
                self._answer(line)
        except WeftError as error:
            typer.echo(f"error: {error}", err=True)

    def _answer(self, text: str) -> None:
        pieces = self._conversation.say(text)
        try:
            for piece in pieces:
                typer.echo(piece, nl=False)
        except KeyboardInterrupt:
            # Raised here, between two pieces, or inside, where the conversation has kept what was said.
            self._conversation.stop()
            typer.echo(" (stopped)", nl=False)
        typer.echo()

    def _command(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        if name not in self._commands:
            typer.echo(f"There is no command {name}. {nearest(name, [*self._commands, '/exit'])}")
            return
        self._commands[name](rest.strip())

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        typer.echo("(A new conversation.)")

    def _undo(self, _: str) -> None:
        typer.echo("(Taken back.)" if self._conversation.undo() else "(Nothing has been said.)")

    def _system(self, text: str) -> None:
        self._conversation.set_system(text or None)
        typer.echo("(From the next message on.)")

    def _save(self, name: str) -> None:
        if not name:
            typer.echo("Give the name of a file: /save FILE.")
            return
        path = Path(name).expanduser()
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump(self._conversation.messages, file, ensure_ascii=False, indent=1)
        except FileExistsError:
            typer.echo(f"{path} is there already; give another name.")
        except OSError as error:
            typer.echo(f"{path} cannot be written ({error.strerror}).")
        else:
            typer.echo(f"(Saved in {path}.)")


def _edit_lines() -> None:
    """Let the line be edited and earlier ones be called back, where the system can."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
