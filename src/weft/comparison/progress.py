"""How far a study is, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from weft.training.events import clock_time


@dataclass(frozen=True)
class StudyPiece:
    """The piece of work that a line is about.

    Attributes:
        attempt: from 0 on.
        lr: of a trial; None for a run, or a measurement of pace.
        share: of the piece that is done.
        status: how it ended; empty while it is under way.
    """

    model: str
    attempt: int
    lr: float | None = None
    share: float = 0.0
    status: str = ""
    bits_per_byte: float | None = None

    def cell(self) -> str:
        """In a few letters."""
        if self.lr is not None:
            return f"lr {self.lr:g}"
        if self.bits_per_byte is not None:
            return f"{self.bits_per_byte:.4f}"
        return self.status if self.status not in ("", "finished") else f"{self.share:.0%}"


@dataclass(frozen=True)
class StudyProgress:
    """One line of a study's course.

    Attributes:
        what: the piece of work, such as ``transformer, run 2 of 3``.
        done: share of the whole study's work.
        seconds_left: of the whole study, at the pace so far; None before there is one.
        piece: that the line is about; None where it is about the whole study.
        lasting: the line says what holds for the whole study, and is to stay where it can be read.
        models: of the study, in its order.
    """

    what: str
    text: str
    done: float
    seconds_left: float | None
    piece: StudyPiece | None = None
    models: tuple[str, ...] = ()
    attempts: int = 0
    lasting: bool = False

    def line(self) -> str:
        """In one line."""
        left = ("time left not known yet" if self.seconds_left is None
                else f"study {clock_time(self.seconds_left)} left")
        return f"{self.done:4.0%}  {left}  {self.what}: {self.text}"


StudyListener: TypeAlias = Callable[[StudyProgress], None]


@final
class WorkClock:
    """Counts work that is done and that is left.

    Args:
        listener: called with every line; None: none.
        now: seconds that pass.
    """

    def __init__(self, listener: StudyListener | None, now: Callable[[], float] = time.monotonic, *,
                 models: tuple[str, ...] = (), attempts: int = 0) -> None:
        self._listener, self._now = listener, now
        self._models, self._attempts = models, attempts
        self._left: dict[str, float] = {}
        self._finished = self._worked = self._spent = 0.0
        self._since = now()

    def expect(self, what: str, work: float) -> None:
        """A piece of work to come; its amount in any unit that all pieces share."""
        self._left[what] = work

    def begin(self, what: str, piece: StudyPiece | None = None) -> None:
        """A piece of work is taken up."""
        self._since = self._now()
        self.report(what, "begun", 0.0, piece)

    def report(self, what: str, text: str, share: float, piece: StudyPiece | None = None, *,
               lasting: bool = False) -> None:
        """A line about a piece of work of which this share is done; ``lasting`` as in `StudyProgress`."""
        if self._listener is None:
            return
        partly = share * self._left.get(what, 0.0)
        whole = self._finished + sum(self._left.values())
        worked = self._worked + partly
        spent = self._spent + self._now() - self._since
        left = (sum(self._left.values()) - partly) * spent / worked if worked > 0 else None
        self._listener(StudyProgress(what, text, (self._finished + partly) / whole if whole else 0.0, left,
                                     piece and replace(piece, share=share), self._models, self._attempts, lasting))

    def finish(self, what: str, text: str, piece: StudyPiece | None = None, *, now: bool) -> None:
        """A piece of work is done; ``now``: by this study's present run, so that its pace counts."""
        work = self._left.get(what, 0.0)
        if now:
            self._worked += work
            self._spent += self._now() - self._since
        self._finished += work
        self._left[what] = 0.0
        self._since = self._now()
        self.report(what, text, 1.0, piece)
