"""The ``weft`` command."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import typer

from weft.cli import failures, terminal
from weft.cli.lazy import LazyCommand, LazyGroup
from weft.core.version import VERSION

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
    "chat": LazyCommand("weft.cli.chat:chat", "Chat with a model in the terminal."),
    "score": LazyCommand("weft.cli.score:score", "Show the log-probability of every token, in nats; for a "
                         "classifier, of every class."),
    "extend": LazyCommand("weft.cli.extend:extend", "Extend a model with rotary positions to a longer context."),
    "draw": LazyCommand("weft.cli.draw:draw", "Draw a model: its architecture, masks and positions."),
    "convert": LazyCommand("weft.cli.convert:convert", "Write a model in another format.")})
"""Every command but the groups, with the first line of its help, so that ``weft --help`` imports none of them."""

GROUPS: Mapping[str, LazyCommand] = MappingProxyType({
    "config": LazyCommand("weft.cli.config:config_app", "Show a resolved configuration, or the JSON Schema."),
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
