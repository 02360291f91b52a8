"""The ``weft`` command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import weft
from weft.cli.chat import chat
from weft.cli.check import check
from weft.cli.compare import compare
from weft.cli.config import config_app
from weft.cli.convert import convert
from weft.cli.data import data_app
from weft.cli.doctor import doctor
from weft.cli.evaluate import evaluate
from weft.cli.generate import generate
from weft.cli.listing import list_parts
from weft.cli.plan import plan
from weft.cli.score import score
from weft.cli.train import train

app = typer.Typer(name="weft", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  rich_markup_mode=None,
                  help="Declare, train, check, decode and serve language models of every architecture.")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")

COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_parts, "doctor": doctor, "plan": plan, "check": check, "train": train, "compare": compare,
    "eval": evaluate, "generate": generate, "chat": chat, "score": score, "convert": convert}
for name, command in COMMANDS.items():
    app.command(name)(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {weft.__version__}")
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                               help="Print the version and stop.")] = False) -> None:
    """Declare, train, check, decode and serve language models of every architecture."""


def run() -> None:
    """Entry point of the ``weft`` script."""
    app()
