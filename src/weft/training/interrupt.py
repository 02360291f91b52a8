"""Ctrl-C that waits for the end of a step, so that a run can be saved between two."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import final


@final
class Interrupts:
    """A context in which the first Ctrl-C only sets ``pending``; the second raises KeyboardInterrupt at once.

    Python delivers signals to the main thread alone; in any other this does nothing.
    """

    def __init__(self) -> None:
        self.pending = False
        self._in_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupts:
        if self._in_main:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_main:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True
