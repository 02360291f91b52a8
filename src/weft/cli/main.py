"""The ``weft`` command."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import typer

from weft.cli.lazy import LazyCommand, LazyGroup
from weft.core.version import VERSION

COMMANDS: Mapping[str, LazyCommand] = MappingProxyType({
    "list": LazyCommand("weft.cli.listing:list_parts", "The catalogue of parts."),
    "doctor": LazyCommand("weft.cli.doctor:doctor", "What this installation and machine can do, measured."),
    "plan": LazyCommand("weft.cli.plan:plan", "What a model costs before it runs."),
    "check": LazyCommand("weft.cli.check:check", "Run the laws on a model."),
    "train": LazyCommand("weft.cli.train:train", "Train a model, by gradients or by counting."),
    "compare": LazyCommand("weft.cli.compare:compare",
                           "Train models under one budget and show what each is worth."),
    "eval": LazyCommand("weft.cli.evaluate:evaluate", "What a model is worth on held-out data: perplexity and "
                        "bits per byte, or what its run's task measures."),
    "generate": LazyCommand("weft.cli.generate:generate",
                            "Continue texts or rows of token ids, or answer a conversation."),
    "chat": LazyCommand("weft.cli.chat:chat", "Talk with a model in the terminal."),
    "score": LazyCommand("weft.cli.score:score", "The log-probability of every token, in nats; of a model that was "
                         "trained to classify, that of every class."),
    "extend": LazyCommand("weft.cli.extend:extend", "Extend a model with rotary positions to a longer context."),
    "convert": LazyCommand("weft.cli.convert:convert", "Write a model in another format.")})
"""Every command but the groups, with the first line of its help, so that help of all imports none of them."""

GROUPS: Mapping[str, LazyCommand] = MappingProxyType({
    "config": LazyCommand("weft.cli.config:config_app", "Show a configuration resolved, or its JSON Schema."),
    "data": LazyCommand("weft.cli.data:data_app", "Tokenise text once, look at it, and sample it.")})


class WeftGroup(LazyGroup):
    """``weft`` and its commands."""

    lazy = MappingProxyType({**COMMANDS, **GROUPS})


app = typer.Typer(name="weft", cls=WeftGroup, no_args_is_help=True, add_completion=False,
                  pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Declare, train, compare, check and decode language models of every architecture.")
WeftGroup.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {VERSION}")
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                               help="Print the version and stop.")] = False) -> None:
    """Declare, train, compare, check and decode language models of every architecture."""


def run() -> None:
    """Entry point of the ``weft`` script."""
    app()
