"""How far a study is, and how long it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from weft.training.events import clock_time


@dataclass(frozen=True)
class StudyProgress:
    """One line of a study's course.

    Attributes:
        what: the piece of work, such as ``transformer, run 2 of 3``.
        text: what has happened.
        done: share of the whole study's work.
        seconds_left: of the whole study, at the pace so far; None before there is one.
    """

    what: str
    text: str
    done: float
    seconds_left: float | None

    def line(self) -> str:
        """In one line."""
        left = ("time left not known yet" if self.seconds_left is None
                else f"study {clock_time(self.seconds_left)} left")
        return f"{self.done:4.0%}  {left}  {self.what}: {self.text}"


StudyListener: TypeAlias = Callable[[StudyProgress], None]


@final
class Clock:
    """Counts work that is done and that is left.

    Args:
        listener: called with every line; None: none.
        now: seconds that pass.
    """

    def __init__(self, listener: StudyListener | None, now: Callable[[], float] = time.monotonic) -> None:
        self._listener, self._now = listener, now
        self._left: dict[str, float] = {}
        self._finished = self._worked = self._spent = 0.0
        self._since = now()

    def expect(self, what: str, work: float) -> None:
        """A piece of work to come; its amount in any unit that all pieces share."""
        self._left[what] = work

    def begin(self, what: str) -> None:
        """A piece of work is taken up."""
        self._since = self._now()
        self.report(what, "begun", 0.0)

    def report(self, what: str, text: str, share: float) -> None:
        """A line about a piece of work of which this share is done."""
        if self._listener is None:
            return
        partly = share * self._left.get(what, 0.0)
        whole = self._finished + sum(self._left.values())
        worked = self._worked + partly
        spent = self._spent + self._now() - self._since
        left = (sum(self._left.values()) - partly) * spent / worked if worked > 0 else None
        self._listener(StudyProgress(what, text, (self._finished + partly) / whole if whole else 0.0, left))

    def finish(self, what: str, text: str, *, now: bool) -> None:
        """A piece of work is done; ``now``: by this study's present run, so that its pace counts."""
        work = self._left.get(what, 0.0)
        if now:
            self._worked += work
            self._spent += self._now() - self._since
        self._finished += work
        self._left[what] = 0.0
        self._since = self._now()
        self.report(what, text, 1.0)
