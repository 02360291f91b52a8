"""The order in which an engine reads prompts and continues rows. It is plain Python: what computes is a `Runner`.

Every request has tokens that are known and tokens that have been read. A step reads prompts or pieces of them, the
oldest request first, and then chooses one token for every row whose prompt has been read. A piece of a long prompt is
interrupted by steps of the others as often as `weft.serving.pace` says. Requests wait until there is a slot for them
and room for the bytes of their state, which are known before they are admitted.

A request ends in one place, `Scheduler._end`, whatever ended it, so that slots and bytes return to zero.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event as Signal
from threading import Lock, RLock
from typing import Literal, Protocol, TypeAlias, final

from weft.core.errors import FailedError, InputError, WeftError
from weft.serving.pace import Pace
from weft.serving.requests import (
    Chosen,
    EngineLimits,
    Event,
    Failed,
    Figures,
    OverloadedError,
    PromptRead,
    Request,
    Reuse,
    StoppedError,
)

Stage: TypeAlias = Literal["waiting", "reading", "continuing", "ended"]
Outcome: TypeAlias = Literal["finished", "cancelled", "failed"]


@final
@dataclass(eq=False)
class Ticket:
    """A request from its submission to its end.

    Attributes:
        request: the request, with the prompt as it is read.
        tell: is called with its events.
        nbytes: bytes of its state.
        whole: whether its prompt must be read in one piece.
        read: number of tokens of the prompt that have been read.
        stage: how far it is; changed by the scheduler alone.
        cancelled: whether it is to end without a further event.
        deaf: whether ``tell`` has raised, after which it is not called again.
    """

    request: Request
    tell: Callable[[Event], None]
    nbytes: int = 0
    whole: bool = False
    read: int = 0
    stage: Stage = "waiting"
    cancelled: bool = False
    deaf: bool = False
    lock: RLock = field(default_factory=RLock, repr=False)

    @property
    def length(self) -> int:
        """The number of tokens of the prompt, with those of a source."""
        return len(self.request.row.tokens) + len(self.request.row.source or ())


class Runner(Protocol):
    """The computation of rows. A method that raises for one row leaves the other rows as they are."""

    def begin(self, ticket: Ticket) -> int:
        """Start to read a prompt, and return the number of its first tokens that need not be read."""

    def read(self, ticket: Ticket, upto: int, interrupt: Callable[[], None]) -> None:
        """Read the prompt's tokens from ``ticket.read`` to ``upto``, which are not its last ones. Between its
        operations it calls ``interrupt``, in which other rows may begin, go on and leave; what that raises ends it."""

    def admit(self, tickets: Sequence[Ticket]) -> None:
        """Read the rest of these prompts, and take their rows into the batch. If it raises, it took none of them."""

    def prompt_read(self, ticket: Ticket) -> PromptRead:
        """Return the event that the prompt has been read."""

    def step(self) -> Sequence[Mapping[Ticket, Chosen | Exception]]:
        """Choose the next token of every admitted row, and in further rounds more tokens of some; an exception where
        that row has failed."""

    def leave(self, ticket: Ticket, *, complete: bool) -> None:
        """Forget a row and free its state, whatever was done of it. ``complete``: its answer is whole."""


@final
class Scheduler:
    """Requests that wait and run.

    Args:
        runner: computes the rows.
        limits: numbers of rows, tokens and requests.
        state_bytes: maximum number of bytes of the states of running rows.
        clock: seconds, which never decrease.

    Attributes:
        news: is set by what happens outside of steps, and cleared by every step.
    """

    def __init__(self, runner: Runner, limits: EngineLimits, state_bytes: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._runner, self._limits, self._most_bytes, self._clock = runner, limits, state_bytes, clock
        self.news, self._lock = Signal(), Lock()
        self._waiting, self._waiting_tokens = deque[Ticket](), 0
        self._running = dict[Ticket, None]()  # in the order of their admission, hence of their age
        self._bytes, self._closed = 0, False
        self._sums, self._reuse = Counter[str](), Counter[Reuse]()
        self._pace, self._alive = Pace(limits.step_tokens), clock()
        self._piece: Ticket | None = None  # of which a piece is being read
        self._broken: Exception | None = None  # what a step of all rows inside a piece has raised

    def submit(self, ticket: Ticket) -> None:
        """Put a request into the queue; thread-safe.

        Raises:
            InputError: the bytes of its state are more than those of all rows together may be.
            OverloadedError: the queue is full.
            StoppedError: the scheduler is closed.
        """
        if ticket.nbytes > self._most_bytes:
            raise InputError(f"{ticket.request.tokens} tokens to read need a state of {ticket.nbytes:,} bytes, and the "
                             f"engine's states may have {self._most_bytes:,}.", where="request",
                             remedy="Shorten the prompt or lower max_new_tokens.")
        with self._lock:
            if self._closed:
                raise StoppedError("the engine takes no more requests.", where="engine")
            self._require_room(ticket.length)
            self._waiting.append(ticket)
            self._waiting_tokens += ticket.length
        self.news.set()

    def require_room(self, entering: int) -> None:
        """Raise `OverloadedError` where a request that comes after ``entering`` others, which are being read, would
        find the queue full; thread-safe."""
        with self._lock:
            before, most = len(self._waiting) + entering, self._limits.queue_requests
            if before >= most + max(0, self._limits.rows - len(self._running)):
                raise self._overloaded(before, most, "requests")

    def _require_room(self, length: int) -> None:
        """A request that would be admitted by the next step never finds the queue full, however long its prompt is."""
        limits = self._limits
        for have, more, most, what in ((len(self._waiting), 1, limits.queue_requests, "requests"),
                                       (self._waiting_tokens, length, limits.queue_tokens, "tokens of prompts")):
            if self._waiting and have + more > most:
                raise self._overloaded(have, most, what)

    def _overloaded(self, have: int, most: int, what: str) -> OverloadedError:
        self._sums["refused"] += 1
        seconds = self._pace.seconds(sum(each.request.tokens for each in self._waiting))
        return OverloadedError(f"{have} {what} wait, and the queue has room for {most}.", seconds)

    def cancel(self, ticket: Ticket) -> None:
        """End a request without a further event; thread-safe, and without effect on one that has ended."""
        with ticket.lock:  # once it is held, no event is being told
            ticket.cancelled = True
        with self._lock:
            if ticket.stage == "waiting" and ticket in self._waiting:
                self._waiting.remove(ticket)
                self._waiting_tokens -= ticket.length
                ticket.stage = "ended"
                self._sums["cancelled"] += 1
        self.news.set()

    def step(self) -> bool:
        """Do one step, and return whether there was anything to do."""
        self.news.clear()
        for ticket in [each for each in self._running if each.cancelled and each is not self._piece]:
            self._end(ticket, "cancelled")
        self._admit_waiting()
        with self._lock:
            self._alive = self._clock()
        if not self._running:
            return False
        self._continue_rows(beside=self._read_prompts())
        self._sums["steps"] += 1
        return True

    def close(self) -> None:
        """End every request that is left with `Failed`, and take no more."""
        with self._lock:
            self._closed = True
            waiting, self._waiting, self._waiting_tokens = list(self._waiting), deque(), 0
        error = StoppedError("the engine was stopped before the answer was complete.", where="engine",
                             remedy="Send the request again.")
        for ticket in [*self._running, *waiting]:
            self._fail(ticket, error)

    def refuse_more(self) -> None:
        """Take no more requests; those that are there go on."""
        with self._lock:
            self._closed = True

    def figures(self) -> Figures:
        """The numbers of now, without those of kept states; thread-safe."""
        with self._lock:
            running, sums = list(self._running), self._sums
            return Figures(running=len(running), waiting=len(self._waiting), waiting_tokens=self._waiting_tokens,
                           slots=sum(each.stage == "continuing" for each in running), state_bytes=self._bytes,
                           reuse=tuple(self._reuse.items()), alive_at=self._alive, **sums)

    def _admit_waiting(self) -> None:
        """Begin requests in the order of their arrival, as long as there are slots and bytes for the first of them."""
        while True:
            with self._lock:
                if not self._waiting or len(self._running) >= self._limits.rows:
                    return
                if self._bytes + self._waiting[0].nbytes > self._most_bytes:
                    return
                ticket = self._waiting.popleft()
                self._waiting_tokens -= ticket.length
                ticket.stage = "reading"
                self._running[ticket] = None
                self._bytes += ticket.nbytes
            with self._failing(ticket):
                ticket.read = self._runner.begin(ticket)
                self._sums["cached_tokens"] += ticket.read

    def _read_prompts(self) -> bool:
        """Read prompts, the oldest first, as many tokens as one step may have: short ones whole, and a piece of the
        oldest long one, behind which the short ones need not wait. Returns whether a piece has been read or is."""
        beside, most = any(each.stage == "continuing" for each in self._running), self._limits.step_tokens
        left, last, piece = most, list[Ticket](), self._piece is not None
        for ticket in [each for each in self._running if each.stage == "reading" and each is not self._piece]:
            rest, long = ticket.length - ticket.read, not ticket.whole and ticket.length > most
            if rest <= (1 if long and beside else left) or (ticket.whole and left == most):
                last.append(ticket)
                left -= rest
            elif long and not piece:
                piece, tokens = True, min(self._pace.piece(beside), left, rest - 1)
                self._read_piece(ticket, tokens, beside)
                left -= tokens
            if left <= 0:
                break
        self._admit([each for each in last if each.stage == "reading"])
        return piece

    def _read_piece(self, ticket: Ticket, tokens: int, beside: bool) -> None:
        self._piece = ticket
        self._pace.begin(self._clock())
        try:
            with self._failing(ticket):
                self._runner.read(ticket, ticket.read + tokens, lambda: self._interrupt(ticket))
                self._sums["prompt_tokens"] += tokens
                ticket.read += tokens
        finally:
            self._piece = None
        if beside:
            self._pace.read(tokens)

    def _interrupt(self, ticket: Ticket) -> None:
        """Do a step of the rows beside a piece that is being read, if it is time. Raises `FailedError`: its request has
        been cancelled."""
        if self._pace.due(self._clock()) and (len(self._running) > 1 or self._waiting):
            try:
                self.step()
            except Exception as error:
                self._broken = error
                raise
            self._pace.go_on(self._clock())
        if ticket.cancelled:
            raise FailedError("the request was cancelled.", where="engine")

    def _admit(self, tickets: Sequence[Ticket]) -> None:
        """Read the rest of these prompts together; where that fails, each alone, so that only its own row fails."""
        admitted = list(tickets)
        try:
            if tickets:
                self._runner.admit(tickets)
        except Exception:
            admitted = [ticket for ticket in tickets if self._admits_alone(ticket)]
        for ticket in admitted:
            self._sums["prompt_tokens"] += ticket.length - ticket.read
            ticket.read, ticket.stage = ticket.length, "continuing"
            with self._failing(ticket):
                event = self._runner.prompt_read(ticket)
                self._reuse[event.reuse] += 1
                self._tell(ticket, event)
                if not ticket.request.settings.max_new_tokens:
                    self._end(ticket, "finished")

    def _admits_alone(self, ticket: Ticket) -> bool:
        with self._failing(ticket) as errors:
            self._runner.admit([ticket])
        return not errors

    def _continue_rows(self, *, beside: bool) -> None:
        """Choose a token for every row whose prompt has been read, and tell it. ``beside``: a long prompt."""
        if not any(each.stage == "continuing" for each in self._running):
            return
        begun = self._clock()
        chosen = [pair for tokens in self._runner.step() for pair in tokens.items()]
        self._pace.stepped(len(chosen), self._clock() - begun, beside)
        for ticket, new in chosen:
            if ticket.stage == "ended":
                continue
            if isinstance(new, Exception):
                self._fail(ticket, new)
                continue
            with self._failing(ticket):
                self._sums.update({"new_tokens": sum(len(each.tokens) for each in new)} if isinstance(new, tuple) else {
                    "new_tokens": 1, "drafted": new.drafted, "accepted": new.accepted})
                if isinstance(new, tuple) or new.finish:  # it leaves before its client is told, who may look
                    self._end(ticket, "cancelled" if ticket.cancelled else "finished")
                self._tell(ticket, new)

    def _tell(self, ticket: Ticket, event: Event) -> None:
        with ticket.lock:
            if ticket.cancelled or ticket.deaf:
                return
            ticket.deaf = True  # until it returns
            ticket.tell(event)
            ticket.deaf = False

    @contextmanager
    def _failing(self, ticket: Ticket) -> Iterator[list[Exception]]:
        """A context in which an exception is the end of this request alone; the list has it afterwards."""
        errors = list[Exception]()
        try:
            yield errors
        except Exception as error:
            if error is self._broken:  # it is not of this request
                raise
            errors.append(error)
            self._fail(ticket, error)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        """End a request with `Failed`. A client whose ``tell`` raises is not told."""
        self._end(ticket, "cancelled" if ticket.cancelled else "failed")
        with suppress(Exception):
            self._tell(ticket, Failed(as_weft_error(error)))

    def _end(self, ticket: Ticket, outcome: Outcome) -> None:
        """Free what a request holds. Does nothing if it has ended."""
        with self._lock:
            if ticket.stage == "ended":
                return
            begun = ticket in self._running
            if begun:
                del self._running[ticket]
                self._bytes -= ticket.nbytes
            ticket.stage = "ended"
            self._sums[outcome] += 1
        if begun:
            with suppress(Exception):  # only the copy for later prompts can fail, which none of them needs
                self._runner.leave(ticket, complete=outcome == "finished")


def as_weft_error(error: Exception) -> WeftError:
    """The error as its client may see it: without paths or values of this process, which its cause keeps."""
    if isinstance(error, WeftError):
        return error
    told = FailedError(f"the row could not be computed ({type(error).__name__}).", where="engine",
                       remedy="Send the request again; the engine's log has the cause.")
    told.__cause__ = error
    return told
