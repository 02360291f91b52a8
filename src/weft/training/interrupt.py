"""Ctrl-C, SIGTERM and SIGHUP that take effect at the end of a step, so that the run can be saved."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

HANGUP = () if sys.platform == "win32" else (signal.SIGHUP,)
SIGNALS = (signal.SIGINT, signal.SIGTERM, *HANGUP)


class Terminated(KeyboardInterrupt):
    """SIGTERM, which schedulers send before they kill a process, or SIGHUP, which a terminal sends when it is closed;
    they are handled like Ctrl-C."""


class Interrupts:
    """A context in which the first Ctrl-C, SIGTERM or SIGHUP only sets ``pending``, and the second raises at once. A
    signal that the process ignores, as under ``nohup``, stays ignored.

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
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS
                            if signal.getsignal(number) is not signal.SIG_IGN}
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_main:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def stop(self, pending: int) -> None:
        """Raise the exception of a signal that this process or another rank received, if ``pending`` is one.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            Terminated: SIGTERM or SIGHUP.
        """
        if pending:
            raise _error(pending)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.pending:
            raise _error(number)
        self._first = number


def _error(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()
