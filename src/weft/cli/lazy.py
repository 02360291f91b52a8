"""Commands that are imported and built only when they are called, so that no command waits for all the others."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from weft.cli.ctrl_c import INTERRUPTED, WORD

Command: TypeAlias = TyperCommand | TyperGroup
PATHS = frozenset({"--against", "--base", "--data", "--from", "--logits", "--messages", "--out", "--plugin", "--report",
                   "--rows", "--run-code", "--study", "--text-file", "--translations"})
"""The options of all commands whose value is or may be a path."""


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
        if told := empty_path(rest):
            typer.echo(f"error: {told}", err=True)
            raise typer.Exit(2)
        return name, None if name is None else self.lazy[name].load(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Load and run the command. Ctrl-C has the same end while it is imported as while it runs."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo(WORD, err=True)
            raise typer.Exit(INTERRUPTED) from None


def empty_path(arguments: Sequence[str]) -> str | None:
    """A sentence about the first option whose path is empty, as an unset variable of a shell leaves it; Python would
    take the current folder for it. None if there is none."""
    for option, value in zip_longest(arguments, arguments[1:]):
        name, equals, given = option.partition("=")
        if name in PATHS and (not given if equals else value == ""):
            return f"{name}: the path is empty. Give one; the current folder is '.'."
    return None


def _elsewhere() -> None:
    """Stand in for a command that `LazyGroup` has not loaded; never called."""
