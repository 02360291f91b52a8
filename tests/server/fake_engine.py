"""An engine without a model: it answers at once and as it is told to, so that a server can be tested by itself."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, final

import torch

from weft.checkpoints import Loaded
from weft.core.config import parse_part
from weft.core.errors import FailedError, WeftError
from weft.core.model import LanguageModel
from weft.decoding.stopping import Writer
from weft.server.served import Served
from weft.serving.requests import (
    EngineLimits,
    Event,
    Failed,
    Figures,
    OverloadedError,
    PromptRead,
    Request,
    StoppedError,
    TokenLogProb,
)
from weft.tokenizers import ByteTokenizer, Conventions, Tokenizer

CONTEXT = 64
MODEL: dict[str, Any] = {
    "kind": "decoder", "vocab_size": 257, "d_model": 8, "context": CONTEXT,
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"},
                                          {"kind": "mlp", "d_ff": 16}]}]}
LOG_PROB = -0.5


@cache
def model() -> LanguageModel:
    """A tiny decoder over bytes."""
    torch.manual_seed(0)
    found = parse_part(("model",), MODEL).build(None)
    assert isinstance(found, LanguageModel)
    return found.eval()


def served(tokenizer: Tokenizer | None = None, *, template: str | None = None, **options: Any) -> Served:
    """The tiny decoder as it is served, under the name ``tiny``."""
    known = tokenizer or ByteTokenizer()
    if template is not None:
        known = known.with_conventions(Conventions(chat_templates={"default": template}))
    loaded = Loaded(model(), known, model().config, None, {}, Path("tiny"))
    return Served("tiny", loaded, **options)


@final
@dataclass
class Ticket:
    """A request that runs."""

    request: Request
    tell: Callable[[Event], None]
    tokens: deque[int]
    writer: Writer
    read: bool = False


@final
class FakeEngine:
    """Answers every request with tokens that a function gives.

    Args:
        says: the tokens of a request's answer; more are asked for than it has: it goes on with the last.
        pause: seconds between two steps.

    Attributes:
        stalled: no step is made while it is set.
        broken: errors, with each of which one step ends every request.
    """

    def __init__(self, tokenizer: Tokenizer | None, says: Callable[[Request], list[int]], *, pause: float = 0.0,
                 limits: EngineLimits | None = None) -> None:
        self._tokenizer, self._says, self._pause, self._limits = tokenizer, says, pause, limits or EngineLimits()
        self._lock, self._running = threading.Lock(), list[Ticket]()
        self._figures = Figures(alive_at=time.monotonic())
        self.stalled, self.broken = threading.Event(), list[WeftError]()
        self._closed, self._refuses = threading.Event(), False
        self.submitted: list[Request] = []

    def submit(self, request: Request, tell: Callable[[Event], None]) -> Ticket:
        """See `Engine.submit`."""
        with self._lock:
            if self._refuses:
                raise StoppedError("the engine is stopping.")
            self._require_room()
            settings = request.settings
            writer = Writer(settings.row, request.row, settings.max_new_tokens, settings.ending, self._tokenizer)
            ticket = Ticket(request, tell, deque(self._says(request)), writer)
            self._running.append(ticket)
            self.submitted.append(request)
        return ticket

    def require_room(self, entering: int) -> None:
        """See `Engine.require_room`."""
        with self._lock:
            self._require_room(entering)

    def _require_room(self, entering: int = 0) -> None:
        if len(self._running) + entering >= self._limits.queue_requests:
            raise OverloadedError(f"{len(self._running)} requests wait.", 7)

    def cancel(self, ticket: Ticket) -> None:
        """See `Engine.cancel`."""
        with self._lock:
            if ticket in self._running:
                self._running.remove(ticket)
                self._figures = replace(self._figures, cancelled=self._figures.cancelled + 1)

    def figures(self) -> Figures:
        """See `Engine.figures`."""
        with self._lock:
            return replace(self._figures, running=len(self._running))

    def step(self) -> None:
        """Give every request its next event."""
        with self._lock:
            running = list(self._running)
            broken = self.broken.pop() if self.broken and running else None
        for ticket in running:
            event: Event = Failed(broken) if broken else self._next(ticket)
            ended = isinstance(event, Failed) or (
                ticket.request.settings.max_new_tokens == 0 if isinstance(event, PromptRead) else event.finish)
            with self._lock:
                if ticket not in self._running:
                    continue
                if ended:
                    self._running.remove(ticket)
                    self._figures = replace(self._figures, finished=self._figures.finished + 1)
            ticket.tell(event)
        with self._lock:
            self._figures = replace(self._figures, steps=self._figures.steps + 1, alive_at=time.monotonic())

    def _next(self, ticket: Ticket) -> Event:
        settings, vocabulary = ticket.request.settings, 257
        if not ticket.read:
            ticket.read = True
            told = ticket.request.prompt_log_probs
            tokens = ticket.request.row.tokens
            log_probs = None if told is None else tuple(
                TokenLogProb(token, None if place == 0 else LOG_PROB, ((token, LOG_PROB),) * min(1, told))
                for place, token in enumerate(tokens))
            return PromptRead(len(tokens) // 2, "reused", log_probs)
        token = ticket.tokens.popleft() if len(ticket.tokens) > 1 else ticket.tokens[0]
        top = tuple(((token + place) % vocabulary, LOG_PROB - place) for place in range(settings.top))
        new = ticket.writer.write(token, LOG_PROB if settings.log_probs else None)
        return replace(new, top=top)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make steps in a thread."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            if not self.stalled.is_set():
                self.step()
            time.sleep(self._pause or 0.001)

    def drain(self, seconds: float) -> bool:
        """See `EngineThread.drain`."""
        with self._lock:
            self._refuses = True
        last = time.monotonic() + seconds
        while self.figures().running and time.monotonic() < last:
            time.sleep(0.005)
        return not self.figures().running

    def stop(self) -> None:
        """See `EngineThread.stop`."""
        self.broken.append(StoppedError("the engine has stopped."))


def failure() -> WeftError:
    """An error of an engine, whose text no client may see."""
    return FailedError("the secret of /etc/passwd.")


def spells(text: str) -> Callable[[Request], list[int]]:
    """Answers every request with a text and the end."""
    return lambda request: [*text.encode(), 256]
