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
/reset        start again with only the system message
/undo         remove your last message and its answer
/system TEXT  replace the system message; without TEXT, remove it
/save FILE    write the conversation as JSON, for --messages
/help         this list
/exit         exit (also Ctrl-D)
Ctrl-C stops an answer and keeps the text so far. To send a message that begins
with a slash, put a space before it."""


@final
class Dialogue:
    """A conversation with the user at the terminal.

    Args:
        conversation: the conversation to continue.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._commands: dict[str, Callable[[str], None]] = {
            "/reset": self._reset, "/undo": self._undo, "/system": self._system, "/save": self._save,
            "/help": lambda _: typer.echo(HELP)}

    def run(self) -> None:
        """Read and answer lines until Ctrl-D or /exit. Errors are printed, and the conversation continues."""
        _edit_lines()
        typer.echo("/help lists the commands, Ctrl-D exits.")
        while True:
            try:
                line = input(PROMPT)
            except EOFError:
                typer.echo()
                return
            except KeyboardInterrupt:
                typer.echo("\n(Exit with Ctrl-D or /exit.)")
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
            # Raised here, between two pieces, or inside `say`, which has then kept the text so far.
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
        typer.echo("(Removed.)" if self._conversation.undo() else "(There is no message to remove.)")

    def _system(self, text: str) -> None:
        self._conversation.set_system(text or None)
        typer.echo("(Takes effect with the next message.)")

    def _save(self, name: str) -> None:
        if not name:
            typer.echo("Give the name of a file: /save FILE.")
            return
        path = Path(name).expanduser()
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump(self._conversation.messages, file, ensure_ascii=False, indent=1)
        except FileExistsError:
            typer.echo(f"{path} exists already; give another name.")
        except OSError as error:
            typer.echo(f"{path} cannot be written ({error.strerror}).")
        else:
            typer.echo(f"(Saved in {path}.)")


def _edit_lines() -> None:
    """Enable line editing and a history of lines, where the system has readline."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
