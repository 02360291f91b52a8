"""Conversations with a language model, whose state is kept from turn to turn, so that only new tokens are read.

    conversation = Conversation(loaded.model, loaded.tokenizer, ChatSettings(template="plain"))
    print("".join(conversation.say("Hello")))

The prompt of each turn is the whole conversation as rendered by the template, and every turn gives the result of
reading that text from the start. A state that has read a prefix of it is continued: the one that the last answer left,
or, where the template renders earlier answers differently from how they were generated (it drops thoughts, it trims),
one that was set aside before the answer. States are never truncated, since those of most layers cannot be.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from weft.chat.messages import Message, parse_messages
from weft.chat.template import NO_EXTRAS, ChatTemplate, Extras, chat_template
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.decoding.choosing import RowSettings
from weft.decoding.mode import declares_length, device_of, evaluation_mode
from weft.decoding.prompts import PromptState, prepare, read_on
from weft.decoding.rows import Row
from weft.decoding.sampling import Sampling
from weft.decoding.slots import Slots
from weft.decoding.stopping import Ending, Finish
from weft.positions.regimes import regimes
from weft.tokenizers import Tokenizer

SET_ASIDE = 2
"""States kept from before answers: that of the last turn, and one more in case that turn is removed."""

TurnEnd: TypeAlias = Finish | Literal["interrupted"]


@dataclass(frozen=True)
class ChatSettings:
    """The settings of a conversation.

    Attributes:
        template: the name of one of the tokenizer's own templates, a file of Jinja, or a built-in style; None: the
            tokenizer's own.
        max_new_tokens: most tokens of one answer.
        sampling: how tokens are chosen.
        stops: strings that end an answer, besides the template's.
        seed: for sampling; each turn draws from a stream of its own.
        extras: further input of the template. The time defaults to the beginning of the conversation.
    """

    template: str | Path | None = None
    max_new_tokens: int = 512
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    seed: int = 0
    extras: Extras = NO_EXTRAS


@dataclass(frozen=True)
class Turn:
    """The figures of one turn.

    Attributes:
        prompt_tokens: tokens of the conversation before the answer.
        reused_tokens: how many of them were already in the state.
        tokens: the answer's ids, with the token that ended it.
        text: the answer, with the special tokens that its template looks for in answers (the marks of a thought).
        finish: why it ended; ``interrupted`` when the caller stopped reading.
    """

    prompt_tokens: int
    reused_tokens: int
    tokens: tuple[int, ...]
    text: str
    finish: TurnEnd


class Conversation:
    """Messages, and a model that answers them.

    Args:
        model: any causal language model.
        tokenizer: that of the model.
        settings: template, sampling and limits.
        messages: the conversation so far, a system message first where there is one.

    Raises:
        InputError: there is no template, or a message is malformed.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, settings: ChatSettings | None = None,
                 messages: Sequence[Message] = ()) -> None:
        self._model, self._settings = model, settings or ChatSettings()
        if self._settings.max_new_tokens < 1:
            raise InputError(f"{self._settings.max_new_tokens} new tokens.", where="max_new_tokens",
                             remedy="Give 1 or more.")
        self._template = chat_template(tokenizer, self._settings.template,
                                       with_tools=self._settings.extras.tools is not None)
        extras = self._settings.extras
        self._extras = replace(extras, now=extras.now or datetime.now())
        self._messages = parse_messages(list(messages)) if messages else []
        self._states = _States(model)
        self._running: Generator[str, None, None] | None = None
        self._turns = 0
        self.last: Turn | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far, in order."""
        return [dict(message) for message in self._messages]

    @property
    def template(self) -> ChatTemplate:
        """The template that renders the conversation."""
        return self._template

    def say(self, text: str) -> Iterator[str]:
        """Send a message of the user, and return an iterator over the pieces of the answer.

        The message and its answer become part of the conversation when the answer ends, or when the caller stops
        reading it (the iterator is closed, Ctrl-C, or another message is sent); not when it fails.

        Raises:
            InputError: at the call: the template rejects the messages, or they exceed the model's positions.
            FailedError: from the iterator: the model gives NaN.
        """
        self.stop()
        messages = [*self._messages, {"role": "user", "content": text}]
        prompt = self._template.encode(messages, add_generation_prompt=True, extras=self._extras)
        room = self._room(len(prompt))
        row, = prepare(self._model, [Row(tuple(prompt))], max_new_tokens=room, start=None)
        before = self._template.encode(messages, extras=self._extras)
        self._running = self._answer(messages, row, _common(prompt, before), room)
        return self._running

    def stop(self) -> None:
        """End the answer that is being generated, if there is one; its text so far is kept."""
        if self._running is not None:
            self._running.close()

    def set_system(self, text: str | None) -> None:
        """Replace the system message, or remove it; from the next turn on."""
        rest = [message for message in self._messages if message["role"] != "system"]
        self._messages = rest if text is None else [{"role": "system", "content": text}, *rest]

    def undo(self) -> bool:
        """Remove the last message of the user and all that follow it; False when there is none."""
        places = [place for place, message in enumerate(self._messages) if message["role"] == "user"]
        if places:
            del self._messages[places[-1] :]
        return bool(places)

    def reset(self) -> None:
        """Remove all messages but the system message."""
        self._messages = [message for message in self._messages if message["role"] == "system"]
        self.last = None

    def _room(self, prompt: int) -> int:
        limit = self._model.limit()
        if limit is None:
            return self._settings.max_new_tokens
        room = limit - prompt + 1
        if room < 1:
            raise InputError(f"it has {prompt} tokens, and this model has positions for {limit}.",
                             where="conversation", remedy="Remove messages (/undo), or start again (/reset).")
        return min(room, self._settings.max_new_tokens)

    def _answer(self, messages: list[dict[str, Any]], row: Row, boundary: int, room: int) -> Generator[str, None, None]:
        ids: list[int] = []
        pieces: list[str] = []
        finish: TurnEnd = "interrupted"
        reused = self._states.find(row.tokens)
        known = 0 if reused is None else len(reused.tokens)
        try:
            with evaluation_mode(self._model):
                begun = self._states.open(row, reused, boundary)
                for token, piece, end in self._tokens(row, begun, room):
                    ids.append(token)
                    pieces.append(piece)
                    finish = end or finish
                    yield piece
        except (GeneratorExit, KeyboardInterrupt):
            finish = "interrupted"
            self._keep(messages, Turn(len(row.tokens), known, tuple(ids), "".join(pieces), finish))
            raise
        self._keep(messages, Turn(len(row.tokens), known, tuple(ids), "".join(pieces), finish))

    def _tokens(self, row: Row, begun: PromptState | None, room: int) -> Iterator[tuple[int, str, Finish | None]]:
        settings, template = self._settings, self._template
        ending = Ending(template.end_ids, (*template.stops, *settings.stops), tuple(template.marks.values()))
        slots = Slots(self._model, 1, capacity=len(row.tokens) + room - 1, tokenizer=template.tokenizer)
        slot = slots.admit(row, RowSettings(room, settings.sampling, ending, self._turns, settings.seed), begun)
        try:
            while slots.live:
                for new in slots.step():
                    yield new.token, new.text or "", new.finish
        finally:
            self._states.live = slots.leave(slot)

    def _keep(self, messages: list[dict[str, Any]], turn: Turn) -> None:
        self._messages = [*messages, {"role": "assistant", "content": turn.text}]
        self.last = turn
        self._turns += 1


class _States:
    """The states of one conversation: the current one, and those set aside before answers."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._aside = model, list[PromptState]()
        self._live: PromptState | None = None
        self._by_length = declares_length(model)

    @property
    def live(self) -> PromptState | None:
        """The state after the last answer."""
        return self._live

    @live.setter
    def live(self, begun: PromptState | None) -> None:
        # Where parts depend on the length of a text, an answer may have been read again into a state of fixed capacity.
        self._live = None if self._by_length else begun

    def find(self, tokens: tuple[int, ...]) -> PromptState | None:
        """The state that has read the longest proper prefix of ``tokens``; the last token is read to get logits."""
        known = [*self._aside, *([] if self._live is None else [self._live])]
        fitting = [begun for begun in known if self._begins(begun, tokens)]
        return max(fitting, key=lambda begun: len(begun.tokens), default=None)

    def open(self, row: Row, found: PromptState | None, boundary: int) -> PromptState | None:
        """The state from which to read ``row``, given one of `find`; a copy at ``boundary`` is set aside."""
        start = found
        if found is not None and found is not self._live:
            start = PromptState(found.tokens, found.state.clone())
        self._live = None
        boundary = min(boundary, len(row.tokens) - 1)
        if boundary > (0 if start is None else len(start.tokens)) and self._one_regime(boundary, len(row.tokens)):
            start = read_on(self._model, row.tokens[:boundary], start)
            self._aside = [*self._aside[1 - SET_ASIDE :], start]
            start = PromptState(start.tokens, start.state.clone())
        if start is None and not self._by_length:
            start = PromptState((), self._model.init_state(1, device=device_of(self._model)))
        return start

    def _begins(self, begun: PromptState, tokens: tuple[int, ...]) -> bool:
        count = len(begun.tokens)
        return count < len(tokens) and tokens[:count] == begun.tokens and self._one_regime(count, len(tokens))

    def _one_regime(self, first: int, second: int) -> bool:
        if not self._by_length:
            return True
        found = regimes(self._model, max(first, second))
        return bool(found[first] == found[second])


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
