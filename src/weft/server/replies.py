"""Events of an engine as the objects of OpenAI's API, streamed or whole."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple, TypeAlias, final

from weft.core.errors import FailedError
from weft.decoding import Hypothesis, NewToken
from weft.serving.requests import Event, Failed, Progress, PromptRead, Request

Json: TypeAlias = dict[str, Any]
FINISH = {"length": "length", "stop_token": "stop", "stop_string": "stop", "complete": "stop"}


@dataclass
class RowProgress:
    """The answer of one request so far.

    Attributes:
        cached: tokens of its prompt that were not computed again.
        tokens: number of its new tokens.
        log_prob: sum of their log-probabilities.
        accepted, rejected: numbers of guesses that were right, and of those that were not.
        done: whether its last event has come.
        hypotheses: of a search, the best first.
    """

    cached: int = 0
    tokens: int = 0
    log_prob: float = 0.0
    accepted: int = 0
    rejected: int = 0
    done: bool = False
    hypotheses: tuple[Hypothesis, ...] = ()


class Reply(ABC):
    """The answer to a body, made of the events of its requests.

    Args:
        kind: of its object.
        requests: of which the answer is made.
        prompts: places of the first request of each prompt, whose tokens are counted once.
        name: of the model.
        with_usage: whether a stream tells the number of tokens at its end.
    """

    def __init__(self, kind: str, requests: Sequence[Request], prompts: Sequence[int], name: str,
                 with_usage: bool) -> None:
        self.requests, self.name, self._with_usage = tuple(requests), name, with_usage
        self._head = {"id": f"{kind}-{token_hex(12)}", "created": int(time.time()), "model": name}
        self._prompts = tuple(prompts)
        self.rows = [RowProgress() for _ in requests]

    @property
    def done(self) -> bool:
        """Whether all of it has come."""
        return all(row.done for row in self.rows)

    end = "data: [DONE]\n\n"
    """The text that ends a stream."""

    @final
    def tell(self, place: int, event: Progress) -> list[Json]:
        """Take an event of the request at ``place``, and return the chunks that a stream sends of it."""
        row = self.rows[place]
        if isinstance(event, PromptRead):
            row.cached = event.cached
            row.done = self.requests[place].settings.max_new_tokens == 0
        elif isinstance(event, tuple):
            row.tokens, row.hypotheses, row.done = sum(len(each.tokens) for each in event), event, True
            return []
        else:
            row.tokens += 1
            row.accepted, row.rejected = row.accepted + event.accepted, row.rejected + event.drafted - event.accepted
            row.log_prob += event.log_prob or 0.0
            row.done = event.finish is not None
        return self.chunks(place, event)

    def chunks(self, place: int, event: PromptRead | NewToken) -> list[Json]:
        """The chunks that a stream sends of an event."""
        chunks = [{**self._head, "object": self.chunk_object, "choices": [choice],
                   **({"usage": None} if self._with_usage else {})} for choice in self.take(place, event)]
        if self.done and self._with_usage:
            chunks.append({**self._head, "object": self.chunk_object, "choices": [], "usage": self.usage})
        return chunks

    @property
    def usage(self) -> Json:
        """The number of tokens read, made, and not computed again."""
        rows = [self.requests[place].row for place in self._prompts]
        prompt = sum(len(row.tokens) + len(row.source or ()) for row in rows)
        new = sum(row.tokens for row in self.rows)
        cached = sum(self.rows[place].cached for place in self._prompts)
        guesses = {f"{name}_prediction_tokens": sum(getattr(row, name) for row in self.rows)
                   for name in ("accepted", "rejected")}
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
                "prompt_tokens_details": {"cached_tokens": cached},
                **({"completion_tokens_details": guesses} if any(guesses.values()) else {})}

    def whole(self) -> Json:
        """The answer as one object, once it is done."""
        return {**self._head, "object": self.whole_object, "choices": self.choices(), "usage": self.usage}

    def failed(self, error: Json) -> Json:
        """The chunk by which a stream tells that it ends without its answer.

        Args:
            error: as a whole answer would tell it.
        """
        return error

    chunk_object: str
    whole_object: str

    @abstractmethod
    def take(self, place: int, event: PromptRead | NewToken) -> list[Json]:
        """Take an event, and return the choices of the chunks that a stream sends of it."""

    @abstractmethod
    def choices(self) -> list[Json]:
        """The choices of the whole answer."""


class ReadBody(NamedTuple):
    """A body that has been understood: the requests that are to be submitted, and the answer that their events make.

    Attributes:
        requests: all of them are to be submitted, in order; `Reply.tell` takes each event with the request's place.
        answer: see `Reply`.
        stream: whether the body asks for a stream.
    """

    requests: tuple[Request, ...]
    answer: Reply
    stream: bool


def require_answer(event: Event) -> Progress:
    """The event of a request that has not failed. Raises `WeftError`: the error of one that has."""
    if not isinstance(event, Failed):
        return event
    raise event.error if isinstance(event.error, Exception) else FailedError("the request has failed.")
