"""``weft chat``.

The dialogue of ``weft chat`` in a terminal: answers as they come, and commands that begin with a slash.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from weft.cli.closing import word
from weft.cli.generate import Checkpoint, Template, TokenChoice, require_tokenizer
from weft.cli.options import Common, Seed, guarded, print_json
from weft.core.errors import WeftError, nearest

if TYPE_CHECKING:
    from weft.chat.conversation import Conversation


LONGEST_LINE = 2**20
"""Characters of a message on standard input, far more than a model reads."""
Messages = Annotated[Path | None, typer.Option("--messages", help="A JSON file of messages; the conversation "
                                                            "so far.")]
Variables = Annotated[list[str] | None, typer.Option(
    "--variable", metavar="NAME=VALUE", help="A template variable, such as enable_thinking=false. May be repeated.")]


@guarded(lambda given:
         f"weft generate {word(given['checkpoint'])} --messages FILE answers a conversation without a terminal")
def chat(checkpoint: Checkpoint, *,
         message: Annotated[list[str] | None, typer.Option(
             "--message", help="Send this message and exit after its answer. May be repeated.")] = None,
         system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
         messages: Messages = None, template: Template = None, variable: Variables = None,
         max_new_tokens: Annotated[int | None, typer.Option(
             min=1, help="Most new tokens; of one answer, default 512.")] = None,
         choice: TokenChoice, seed: Seed = 0, common: Common) -> None:
    """Chat with a model in the terminal.

    Messages are formatted by the model's own chat template; a model without one needs --template. In a terminal,
    Ctrl-C stops an answer, Ctrl-D exits, and /help lists the commands. Without a terminal, each line of standard input
    is one message, even where it begins with a slash. Where an option is not given, the settings of the model's own
    generation_config.json apply, and are named.
    """
    common.prepare()
    from weft import api
    from weft.chat.messages import read_messages
    from weft.chat.template import Extras

    loaded = common.load(checkpoint, "a conversation")
    sampling, most, line = api.decoding_defaults(loaded, {"max_new_tokens": max_new_tokens, **choice.named()},
                                                 draws=True, most=512)
    typer.echo(line, err=True, nl=bool(line))
    settings = api.ChatSettings(
        template=template, max_new_tokens=most, stops=tuple(choice.stop or ()), seed=seed, sampling=sampling,
        extras=Extras(variables=_variables(variable or [])))
    _, model = api.load_language_model(loaded, "a conversation")
    conversation = api.Conversation(model, require_tokenizer(loaded), settings,
                                    [] if messages is None else read_messages(messages))
    if system is not None:
        conversation.set_system(system)
    if not message and not common.json and sys.stdin.isatty():
        Dialogue(conversation).run()
    else:
        _monologue(conversation, iter(message) if message else _lines(), common.json)


def _lines() -> Iterator[str]:
    """The messages on standard input, one per line; empty lines are skipped. Raises `InputError`: a line is longer than
    `LONGEST_LINE`; an endless one would fill the memory."""
    from weft.core.errors import InputError

    while line := sys.stdin.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise InputError(f"a message of more than {LONGEST_LINE:,} characters.", where="standard input",
                             remedy="Give one message a line.")
        if line.strip():
            yield line.rstrip("\r\n")


def _monologue(conversation: Conversation, messages: Iterator[str], json: bool) -> None:
    turns: list[dict[str, Any]] = []
    for text in messages:
        for piece in conversation.say(text):
            if not json:
                typer.echo(piece, nl=False)
        if not json:
            typer.echo()
            continue
        turn = conversation.last
        assert turn is not None, "an answer that has ended is the last turn"
        turns.append({"message": text, "text": turn.text, "tokens": turn.tokens, "finish": turn.finish,
                      "prompt_tokens": turn.prompt_tokens, "reused_tokens": turn.reused_tokens})
    if json:
        print_json({"turns": turns, "messages": conversation.messages})


def _variables(given: list[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE``, the values as YAML, so that ``true`` is a boolean and ``3`` a number."""
    from weft.core.errors import InputError
    from weft.training.overrides import apply_overrides

    for text in given:
        name = text.partition("=")[0]
        if "=" not in text or not name.isidentifier():
            raise InputError(f"{text!r} is not NAME=VALUE.", where="--variable",
                             remedy="Give, for instance, enable_thinking=false.")
    return apply_overrides({}, given)


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
    """A conversation with the user at the terminal."""

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
