"""Conversations with a language model: its state is kept from turn to turn, so that only what is new is read.

    conversation = Conversation(loaded.model, loaded.tokenizer, ChatSettings(template="plain"))
    print("".join(conversation.say("Hello")))

What the model reads at each turn is the whole conversation as its template writes it, and every turn equals that text
read anew. A state that has read the beginning of it is gone on from: the one that the last answer left, or, where the
template writes earlier answers otherwise than they were given (it drops thoughts, it trims), one that was set aside
before the answer. No state is ever cut short: most layers' states cannot be.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from weft.chat.messages import Message, parse_messages
from weft.chat.template import NO_EXTRAS, ChatTemplate, Extras, chat_template
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.decoding.choosing import RowSettings
from weft.decoding.mode import declares_length, device_of, evaluation_mode
from weft.decoding.output import Finish
from weft.decoding.prompts import Begun, prepare, read_on
from weft.decoding.rows import Row
from weft.decoding.sampling import Sampling
from weft.decoding.slots import Slots
from weft.decoding.stopping import Ending
from weft.positions.regimes import regimes
from weft.tokenizers import Tokenizer

SET_ASIDE = 2
"""States kept from before answers: that of the last turn, and one more for the turn that is taken back."""

TurnEnd: TypeAlias = Finish | Literal["interrupted"]


@final
@dataclass(frozen=True)
class ChatSettings:
    """How a conversation is held.

    Attributes:
        template: the name of one of the tokenizer's own templates, a file of Jinja, or a built-in style; None: the
            tokenizer's own.
        max_new_tokens: tokens that an answer gets at most.
        sampling: how tokens are chosen.
        stops: strings that end an answer, besides the template's.
        seed: of the draws; each turn has its own.
        extras: what the template gets besides the messages. The time is that of the conversation's beginning.
    """

    template: str | Path | None = None
    max_new_tokens: int = 512
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    seed: int = 0
    extras: Extras = NO_EXTRAS


@final
@dataclass(frozen=True)
class Turn:
    """What was read and said in one turn.

    Attributes:
        prompt_tokens: tokens of the conversation before the answer.
        reused_tokens: how many of them were not read again.
        tokens: the answer's ids, with the token that ended it.
        text: the answer.
        finish: why it ended; ``interrupted`` when the caller stopped reading.
    """

    prompt_tokens: int
    reused_tokens: int
    tokens: tuple[int, ...]
    text: str
    finish: TurnEnd


@final
class Conversation:
    """Messages, and a model that answers them.

    Args:
        model: any causal language model.
        tokenizer: its own.
        settings: how to talk.
        messages: what has been said already, a system message first where there is one.

    Raises:
        InputError: no template, or messages that are none.
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
        """What has been said, in order."""
        return [dict(message) for message in self._messages]

    @property
    def template(self) -> ChatTemplate:
        """What writes the conversation."""
        return self._template

    def say(self, text: str) -> Iterator[str]:
        """Say something; the answer comes piece by piece.

        The message and its answer become part of the conversation when the answer ends, or when the caller stops
        reading it (the iterator is closed, Ctrl-C, or something else is said); not when it fails.

        Raises:
            InputError: at the call: the template refuses, or the conversation has outgrown the model.
            FailedError: while the answer comes: the model gives NaN.
        """
        self.stop()
        asked = [*self._messages, {"role": "user", "content": text}]
        prompt = self._template.encode(asked, add_generation_prompt=True, extras=self._extras)
        room = self._room(len(prompt))
        row, = prepare(self._model, [Row(tuple(prompt))], max_new_tokens=room, start=None)
        before = self._template.encode(asked, extras=self._extras)
        self._running = self._answer(asked, row, _common(prompt, before), room)
        return self._running

    def stop(self) -> None:
        """End the answer that is coming, if there is one; what was said is kept."""
        if self._running is not None:
            self._running.close()

    def set_system(self, text: str | None) -> None:
        """Replace the system message, or remove it; from the next turn on."""
        rest = [message for message in self._messages if message["role"] != "system"]
        self._messages = rest if text is None else [{"role": "system", "content": text}, *rest]

    def undo(self) -> bool:
        """Take the last message of the user back, with all that followed; False when there is none."""
        places = [place for place, message in enumerate(self._messages) if message["role"] == "user"]
        if places:
            del self._messages[places[-1] :]
        return bool(places)

    def reset(self) -> None:
        """Forget all but the system message."""
        self._messages = [message for message in self._messages if message["role"] == "system"]
        self.last = None

    def _room(self, prompt: int) -> int:
        limit = self._model.limit()
        if limit is None:
            return self._settings.max_new_tokens
        room = limit - prompt + 1
        if room < 1:
            raise InputError(f"it has grown to {prompt} tokens, and this model has positions for {limit}.",
                             where="conversation", remedy="Take messages back (/undo), or begin anew (/reset).")
        return min(room, self._settings.max_new_tokens)

    def _answer(self, asked: list[dict[str, Any]], row: Row, boundary: int,
                room: int) -> Generator[str, None, None]:
        said: list[int] = []
        pieces: list[str] = []
        finish: TurnEnd = "interrupted"
        reused = self._states.find(row.tokens)
        known = 0 if reused is None else len(reused.tokens)
        try:
            with evaluation_mode(self._model):
                begun = self._states.open(row, reused, boundary)
                for token, piece, end in self._tokens(row, begun, room):
                    said.append(token)
                    pieces.append(piece)
                    finish = end or finish
                    yield piece
        except (GeneratorExit, KeyboardInterrupt):
            finish = "interrupted"
            self._keep(asked, Turn(len(row.tokens), known, tuple(said), "".join(pieces), finish))
            raise
        self._keep(asked, Turn(len(row.tokens), known, tuple(said), "".join(pieces), finish))

    def _tokens(self, row: Row, begun: Begun | None, room: int) -> Iterator[tuple[int, str, Finish | None]]:
        settings, template = self._settings, self._template
        ending = Ending(template.end_ids, (*template.stops, *settings.stops))
        slots = Slots(self._model, 1, capacity=len(row.tokens) + room - 1, tokenizer=template.tokenizer)
        slot = slots.admit(row, RowSettings(room, settings.sampling, ending, self._turns, settings.seed), begun)
        try:
            while slots.live:
                for new in slots.step():
                    yield new.token, new.text or "", new.finish
        finally:
            self._states.live = slots.leave(slot)

    def _keep(self, asked: list[dict[str, Any]], turn: Turn) -> None:
        self._messages = [*asked, {"role": "assistant", "content": turn.text}]
        self.last = turn
        self._turns += 1


@final
class _States:
    """The states of one conversation: the live one, and those set aside before answers."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._aside = model, list[Begun]()
        self._live: Begun | None = None
        self._by_length = declares_length(model)

    @property
    def live(self) -> Begun | None:
        """The state that the last answer has left."""
        return self._live

    @live.setter
    def live(self, begun: Begun | None) -> None:
        # Where the length of a text counts, an answer may have been run anew, into a state of a fixed capacity.
        self._live = None if self._by_length else begun

    def find(self, tokens: tuple[int, ...]) -> Begun | None:
        """The state that has read most of the beginning of ``tokens``, and not all: the last gives the logits."""
        known = [*self._aside, *([] if self._live is None else [self._live])]
        fitting = [begun for begun in known if self._begins(begun, tokens)]
        return max(fitting, key=lambda begun: len(begun.tokens), default=None)

    def open(self, row: Row, found: Begun | None, boundary: int) -> Begun | None:
        """What has read the beginning of ``row``, from a state of `find`; the state at ``boundary`` is set aside."""
        start = found
        if found is not None and found is not self._live:
            start = Begun(found.tokens, found.state.clone())
        self._live = None
        boundary = min(boundary, len(row.tokens) - 1)
        if boundary > (0 if start is None else len(start.tokens)) and self._one_regime(boundary, len(row.tokens)):
            start = read_on(self._model, row.tokens[:boundary], start)
            self._aside = [*self._aside[1 - SET_ASIDE :], start]
            start = Begun(start.tokens, start.state.clone())
        if start is None and not self._by_length:
            start = Begun((), self._model.init_state(1, device=device_of(self._model)))
        return start

    def _begins(self, begun: Begun, tokens: tuple[int, ...]) -> bool:
        count = len(begun.tokens)
        return count < len(tokens) and tokens[:count] == begun.tokens and self._one_regime(count, len(tokens))

    def _one_regime(self, first: int, second: int) -> bool:
        if not self._by_length:
            return True
        found = regimes(self._model, max(first, second))
        return bool(found[first] == found[second])


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that both begin with."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
