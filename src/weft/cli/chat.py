"""``weft chat``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.chat_dialogue import Dialogue
from weft.cli.closing import Given, word
from weft.cli.generate import (
    Checkpoint,
    Greedy,
    MinP,
    Penalty,
    Stop,
    Temperature,
    Template,
    TopK,
    TopP,
    options_of,
    require_tokenizer,
)
from weft.cli.options import (
    AllowPickles,
    Device,
    Dtype,
    Json,
    Kernels,
    Offline,
    Plugin,
    Revision,
    Seed,
    Threads,
    guarded,
    on_disk,
    prepare,
    print_json,
)

if TYPE_CHECKING:
    from weft.chat.conversation import Conversation

LONGEST_LINE = 2**20
"""Characters of a message on standard input, far more than a model reads."""
Messages = Annotated[Path | None, typer.Option("--messages", help="A JSON file of messages; the conversation "
                                                            "so far.")]
Variables = Annotated[list[str] | None, typer.Option(
    "--variable", metavar="NAME=VALUE", help="A template variable, such as enable_thinking=false. May be repeated.")]


def _after(given: Given) -> str:
    return f"weft generate {word(given['checkpoint'])} --messages FILE answers a conversation without a terminal"


@guarded(_after)
def chat(checkpoint: Checkpoint,
         message: Annotated[list[str] | None, typer.Option(
             "--message", help="Send this message and exit after its answer. May be repeated.")] = None,
         system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
         messages: Messages = None, template: Template = None, variable: Variables = None,
         max_new_tokens: Annotated[int | None, typer.Option(
             min=1, help="Most new tokens; of one answer, default 512.")] = None,
         greedy: Greedy = False, temperature: Temperature = None, top_k: TopK = None, top_p: TopP = None,
         min_p: MinP = None, repetition_penalty: Penalty = None, stop: Stop = None,
         seed: Seed = 0, device: Device = "cpu", dtype: Dtype = None, threads: Threads = None, kernels: Kernels = None,
         plugin: Plugin = None, json: Json = False, revision: Revision = None,
         offline: Offline = False, allow_pickles: AllowPickles = False) -> None:
    """Chat with a model in the terminal.

    Messages are formatted by the model's own chat template; a model without one needs --template. In a terminal,
    Ctrl-C stops an answer, Ctrl-D exits, and /help lists the commands. Without a terminal, each line of standard input
    is one message, even where it begins with a slash. Where an option is not given, the settings of the model's own
    generation_config.json apply, and are named.
    """
    prepare(plugin, threads, kernels)
    from weft import api
    from weft.chat.messages import read_messages
    from weft.chat.template import Extras

    loaded = api.load(on_disk(checkpoint, revision, offline, allow_pickles), device=device, dtype=dtype,
                      purpose="a conversation")
    sampling, most, line = api.decoding_defaults(loaded, {"max_new_tokens": max_new_tokens, **options_of(
        greedy, temperature, top_k, top_p, min_p, repetition_penalty)}, draws=True, most=512)
    typer.echo(line, err=True, nl=bool(line))
    settings = api.ChatSettings(
        template=template, max_new_tokens=most, stops=tuple(stop or ()), seed=seed, sampling=sampling,
        extras=Extras(variables=_variables(variable or [])))
    _, model = api.load_language_model(loaded, "a conversation")
    conversation = api.Conversation(model, require_tokenizer(loaded), settings,
                                    [] if messages is None else read_messages(messages))
    if system is not None:
        conversation.set_system(system)
    if not message and not json and sys.stdin.isatty():
        Dialogue(conversation).run()
    else:
        _monologue(conversation, iter(message) if message else _lines(), json)


def _lines() -> Iterator[str]:
    """The messages on standard input, one per line; empty lines are skipped.

    Raises:
        InputError: a line is longer than `LONGEST_LINE`; an endless one would fill the memory.
    """
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
