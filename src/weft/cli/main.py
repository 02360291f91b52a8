"""The ``weft`` command.

Commands that are imported and built only when they are called, so that no command waits for all the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from weft.cli import failures, terminal
from weft.cli.ctrl_c import INTERRUPTED, WORD
from weft.core.version import VERSION

Command: TypeAlias = TyperCommand | TyperGroup
MAY_BE_PATHS = frozenset({"--base", "--from"})
"""The options of all commands whose value is a path or a name of something else."""


class LazyCommand(NamedTuple):
    """Where a command is defined, and the first line of its help.

    Attributes:
        place: ``module:name`` of a function, or of a `typer.Typer` with commands of its own.
        line: shown in the list of commands.
    """

    place: str
    line: str

    def load(self, name: str) -> Command:
        """The command itself, under that name."""
        module, _, attribute = self.place.partition(":")
        found: Callable[..., None] | typer.Typer = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name)(found)
            found = alone
        built = get_command(found)
        assert isinstance(built, TyperCommand | TyperGroup), "typer builds its own commands"
        return built


class LazyGroup(TyperGroup):
    """A group that holds names and help lines of its commands (see `register`), and loads the one that is called.

    Class attributes:
        lazy: the commands by name.
    """

    lazy: ClassVar[Mapping[str, LazyCommand]]

    @classmethod
    def register(cls, app: typer.Typer) -> None:
        """Register the names and lines with ``app``; its help and the search for a misspelt name need no more."""
        for name, command in cls.lazy.items():
            app.command(name, short_help=command.line)(_elsewhere)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command that ``args`` name, imported and built."""
        name, _, rest = super().resolve_command(ctx, args)
        command = None if name is None else self.lazy[name].load(name)
        if command is not None and (told := empty_path(rest, path_options(command))):
            typer.echo(f"error: {told}", err=True)
            raise typer.Exit(2)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Load and run the command. Ctrl-C has the same end while it is imported as while it runs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(WORD, err=True)
            raise typer.Exit(INTERRUPTED) from None


def path_options(command: Any) -> set[str]:
    """The options of a command, or of the commands of a group, whose value is or may be a path."""
    return {option for each in getattr(command, "commands", {"": command}).values() for parameter in each.params
            for option in parameter.opts if option.startswith("-")
            and (option in MAY_BE_PATHS or "Path" in str(parameter.type_descriptor.annotation))}


def empty_path(arguments: Sequence[str], paths: Collection[str]) -> str | None:
    """A sentence about the first of the options ``paths`` that is empty, as an unset variable of a shell leaves it;
    Python would take the current folder for it. None if there is none."""
    for option, value in zip_longest(arguments, arguments[1:]):
        name, equals, given = option.partition("=")
        if name in paths and (not given if equals else value == ""):
            return f"{name}: the path is empty. Give one; the current folder is '.'."
    return None


def _elsewhere() -> None:
    """Stand in for a command that `LazyGroup` has not loaded; never called."""


COMMANDS: Mapping[str, LazyCommand] = MappingProxyType({
    "list": LazyCommand("weft.cli.listing:list_parts", "List the parts."),
    "doctor": LazyCommand("weft.cli.doctor:doctor", "Show what this installation and machine can do, measured."),
    "plan": LazyCommand("weft.cli.plan:plan", "Show what a model costs before it runs."),
    "check": LazyCommand("weft.cli.check:check", "Run the laws on a model."),
    "judge": LazyCommand("weft.cli.judge:judge",
                         "Judge whether something is a language model: one verdict on its laws."),
    "train": LazyCommand("weft.cli.train:train", "Train a model, by gradients or by counting."),
    "compare": LazyCommand("weft.cli.compare:compare",
                           "Train models under one budget and compare how well they predict."),
    "eval": LazyCommand("weft.cli.evaluate:evaluate", "Measure a model: perplexity and bits per byte of "
                        "held-out data, the metrics of its run's task, or a benchmark."),
    "rate": LazyCommand("weft.cli.rate:rate", "Rate models by pairwise preferences: Bradley-Terry or Elo."),
    "generate": LazyCommand("weft.cli.generate:generate",
                            "Continue texts or rows of token ids, or answer a conversation."),
    "translate": LazyCommand("weft.cli.translate:translate",
                             "Write the target of each line of a text, with an encoder-decoder, by "
                             "beam search."),
    "predict": LazyCommand("weft.cli.predict:predict", "Predict for every record of a file: a class, values, a "
                           "translation, a continuation or a vector."),
    "chat": LazyCommand("weft.cli.chat:chat", "Chat with a model in the terminal."),
    "serve": LazyCommand("weft.cli.serve:serve", "Serve a model over HTTP, to OpenAI's clients and to a page in a "
                         "browser."),
    "score": LazyCommand("weft.cli.score:score", "Show the log-probability of every token, in nats; for a "
                         "classifier, of every class."),
    "extend": LazyCommand("weft.cli.extend:extend", "Extend a model with rotary positions to a longer context."),
    "draw": LazyCommand("weft.cli.draw:draw", "Draw a model: its architecture, masks and positions."),
    "convert": LazyCommand("weft.cli.convert:convert", "Write a model in another format.")})
"""Every command but the groups, with the first line of its help, so that ``weft --help`` imports none of them."""

GROUPS: Mapping[str, LazyCommand] = MappingProxyType({
    "config": LazyCommand("weft.cli.options:config_app", "Show a resolved configuration, or the JSON Schema."),
    "data": LazyCommand("weft.cli.data:data_app", "Tokenise text once, inspect it, and sample it; plan mixtures.")})


class WeftGroup(LazyGroup):
    """``weft`` and its commands."""

    lazy = MappingProxyType({**COMMANDS, **GROUPS})


app = typer.Typer(name="weft", cls=WeftGroup, no_args_is_help=True, add_completion=False,
                  pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Declare, train, compare, check and decode language models of every architecture.")
WeftGroup.register(app)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"weft {VERSION}")
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                               help="Print the version and stop.")] = False) -> None:
    """Declare, train, compare, check and decode language models of every architecture."""


def run() -> None:
    """Run the command line; `weft.cli.entry` calls it."""
    with terminal.on_terminal():
        failures.run(app)
