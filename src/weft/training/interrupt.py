"""Ctrl-C and SIGTERM that take effect at the end of a step, so that the run can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import final

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which schedulers send before they kill a process; it is handled like Ctrl-C."""


@final
class Interrupts:
    """A context in which the first Ctrl-C or SIGTERM only sets ``pending``, and the second raises at once.

    Python delivers signals to the main thread alone; in any other thread the context has no effect.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._in_main = threading.current_thread() is threading.main_thread()

    @property
    def pending(self) -> int:
        """The number of the signal that was received, after which the run stops at the end of the step; 0: none."""
        return self._first or 0

    def __enter__(self) -> Interrupts:
        if self._in_main:
            self._before = [signal.signal(number, self._note) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_main:
            for number, handler in zip(SIGNALS, self._before, strict=True):
                signal.signal(number, handler)

    def stop(self, pending: int) -> None:
        """Raise the exception of a signal that this process or another rank received, if ``pending`` is one.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            Terminated: SIGTERM.
        """
        if pending:
            raise _error(pending)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.pending:
            raise _error(number)
        self._first = number


def _error(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
