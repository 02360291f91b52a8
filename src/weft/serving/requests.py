"""The records by which an engine is asked and by which it answers. They know neither tensors nor HTTP.

A client submits a `Request` with a function, which the engine's thread calls with every `Event` of it, in this order:
one `PromptRead`, then a `NewToken` for every token chosen, of which the last one has a ``finish``, or once the
hypotheses of a search, the best first; or, at any time and as the last one, `Failed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from weft.core.errors import FailedError, WeftError

if TYPE_CHECKING:
    from weft.decoding.beam import Hypothesis, SearchRule
    from weft.decoding.choosing import RowSettings
    from weft.decoding.rows import Row
    from weft.decoding.stopping import NewToken


@dataclass(frozen=True)
class Request:
    """A row that is to be read and continued.

    Attributes:
        row: the ids of the prompt, at least one; with a source for an encoder-decoder.
        settings: how it is continued. ``max_new_tokens`` 0 asks for the prompt's log-probabilities alone.
        prompt_log_probs: number of the most probable tokens that are told for every position of the prompt beside the
            token there (0: the token's own log-probability alone); None: nothing of the prompt is told, which is
            cheaper and is needed for a reused prefix to save time.
        adapter: name of the adapter that the row is computed with; None: the model itself.
        keep: whether the state after the prompt is kept for later requests.
        beams: how its continuations are searched by beams, which stop at the settings' tokens alone; None: they are
            chosen token by token.
    """

    row: Row
    settings: RowSettings
    prompt_log_probs: int | None = None
    adapter: str | None = None
    keep: bool = True
    beams: SearchRule | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens that the row may read: its prompt, and all of its new tokens but the last."""
        return len(self.row.tokens) + max(0, self.settings.max_new_tokens - 1)


@dataclass(frozen=True)
class TokenLogProb:
    """The log-probability of one token of a prompt.

    Attributes:
        token: the token's id.
        log_prob: its log-probability in nats given the tokens before it; None for the first token.
        top: the most probable tokens at its position with their log-probabilities, best first.
    """

    token: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] = ()


Reuse: TypeAlias = Literal["reused", "nothing alike", "no snapshot", "too short", "not asked", "dropped", "unsupported"]
"""Why a prompt's first tokens were or were not taken from a kept state."""


@dataclass(frozen=True)
class PromptRead:
    """A prompt has been read.

    Attributes:
        cached: number of its first tokens whose state was kept of an earlier request and not computed again.
        reuse: why there are as many as there are.
        log_probs: of each token of the prompt, if they were requested.
    """

    cached: int
    reuse: Reuse
    log_probs: tuple[TokenLogProb, ...] | None = None


@dataclass(frozen=True)
class Failed:
    """The request has ended without its answer."""

    error: WeftError


Chosen: TypeAlias = "NewToken | tuple[Hypothesis, ...]"
Progress: TypeAlias = "PromptRead | Chosen"
Event: TypeAlias = "Progress | Failed"


class OverloadedError(FailedError):
    """The engine's queue is full; ``retry_after`` is the number of seconds until there will probably be room."""

    def __init__(self, what: str, retry_after: float) -> None:
        self.retry_after = retry_after
        self.wait = str(max(1, round(retry_after)))  # as HTTP tells it
        super().__init__(what, where="queue", remedy=f"Try again in {self.wait} s.")


class StoppedError(FailedError):
    """The engine takes no more requests, since it is shutting down or has failed."""


@dataclass(frozen=True)
class EngineLimits:
    """The limits within which an engine works.

    Attributes:
        rows: maximum number of rows that run together.
        context: maximum number of tokens that a row may read; None: as many as the model has positions for, at most
            `LONGEST` where it has positions for any number.
        step_tokens: number of tokens of prompts that are read between two steps of the rows that decode.
        queue_requests: maximum number of requests that wait.
        queue_tokens: maximum number of tokens of their prompts.
        state_bytes: maximum number of bytes of the states of running rows; None: half of the memory that is free.
        prefix_bytes: maximum number of bytes of states that are kept for later prompts; 0 keeps none.
        prefix_tokens: the fewest first tokens of a prompt that are taken from a kept state: fewer save no time.
    """

    rows: int = 64
    context: int | None = None
    step_tokens: int = 256
    queue_requests: int = 256
    queue_tokens: int = 1 << 20
    state_bytes: int | None = None
    prefix_bytes: int = 256 << 20
    prefix_tokens: int = 32


LONGEST = 1 << 17
"""Tokens of a row of a model that has positions for any number, unless `EngineLimits.context` says otherwise."""


@dataclass(frozen=True)
class Figures:
    """The state of an engine at one moment, and the sums since it began.

    Attributes:
        running: number of rows that are being read or continued.
        waiting: number of requests that wait.
        waiting_tokens: number of tokens of their prompts.
        slots: number of slots in use by rows that decode.
        state_bytes: bytes of the states of running rows.
        prefix_bytes: bytes of the states that are kept for later prompts.
        prefixes: number of these states.
        prompt_tokens: sum of the tokens of prompts that were computed.
        cached_tokens: sum of the tokens of prompts that were not computed, since a kept state had consumed them.
        new_tokens: sum of the tokens chosen.
        drafted: sum of the tokens that were guessed and read with those chosen.
        accepted: how many of them were taken.
        finished: number of requests that ended with their answer.
        cancelled: number of requests that were cancelled.
        failed: number of requests that failed.
        refused: number of requests that were refused since the queue was full.
        reuse: number of prompts by the reason that `PromptRead` tells.
        steps: number of steps.
        alive_at: `time.monotonic` at the last step, or at the last look for one.
    """

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    slots: int = 0
    state_bytes: int = 0
    prefix_bytes: int = 0
    prefixes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    reuse: tuple[tuple[Reuse, int], ...] = ()
    steps: int = 0
    alive_at: float = 0.0
