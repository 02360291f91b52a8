"""A clock that can be set, in the confined process of a model: what it answers must not depend on the time.

The system's clock can be set for no single process, and reading it needs no system call, so Python's own functions are
put in its place before the file is run. A file that reads the time by foreign code is not shown another one.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any, Self


class SetClock:
    """Python's clock, ahead of the machine's by ``offset`` seconds."""

    def __init__(self) -> None:
        self.offset = 0.0
        now, now_ns, counter, gm, local = time.time, time.time_ns, time.monotonic, time.gmtime, time.localtime
        form, of, of_ns = time.strftime, time.clock_gettime, time.clock_gettime_ns
        text, shown = time.ctime, time.asctime
        ahead: dict[str, Callable[..., Any]] = {
            "time": lambda: now() + self.offset, "time_ns": lambda: now_ns() + int(self.offset * 1e9),
            "monotonic": lambda: counter() + self.offset, "perf_counter": lambda: counter() + self.offset,
            "monotonic_ns": lambda: int((counter() + self.offset) * 1e9),
            "perf_counter_ns": lambda: int((counter() + self.offset) * 1e9),
            "clock_gettime": lambda which: of(which) + self.offset,
            "clock_gettime_ns": lambda which: of_ns(which) + int(self.offset * 1e9),
            "ctime": lambda seconds=None: text(now() + self.offset if seconds is None else seconds),
            "asctime": lambda at=None: text(now() + self.offset) if at is None else shown(at),
            "gmtime": lambda seconds=None: gm(now() + self.offset if seconds is None else seconds),
            "localtime": lambda seconds=None: local(now() + self.offset if seconds is None else seconds),
            "strftime": lambda form_, at=None: form(form_, local(now() + self.offset) if at is None else at)}
        vars(time).update(ahead)
        clock = self

        class Shifted(datetime.datetime):
            """`datetime` by this clock."""

            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Self:
                return cls.fromtimestamp(now() + clock.offset, tz)

            @classmethod
            def utcnow(cls) -> Self:
                return cls.fromtimestamp(now() + clock.offset, datetime.UTC).replace(tzinfo=None)

        class ShiftedDate(datetime.date):
            """`date` by this clock."""

            @classmethod
            def today(cls) -> Self:
                return cls.fromtimestamp(now() + clock.offset)

        vars(datetime).update(datetime=Shifted, date=ShiftedDate)
