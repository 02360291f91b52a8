"""Ctrl-C in a command: one word and exit code 130, at whatever moment it comes.

Python answers the signal by raising KeyboardInterrupt wherever the main thread is. Inside an import that leaves half a
module behind, or becomes an error of the library that was being imported; inside a callback of the interpreter
(a finaliser, the release of an import's lock) it is printed and forgotten. So the signal is answered here: at once
while nothing has been begun, and otherwise by KeyboardInterrupt as soon as no import is under way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, final

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended: 128 + SIGINT, which shells report."""
WORD = "interrupted"
IMPORTING = "<frozen importlib._bootstrap>"
"""The file of the frames of an import, as Python names it."""
AGAIN_SECONDS = 0.02
"""Between two looks whether an import has ended."""


@final
class CtrlC:
    """Answers Ctrl-C from the moment of `begin` on, unless the process was started with the signal ignored, as shells
    do for what they put into the background.

    Attributes:
        working: whether there may be something to tidy up (`begin_work`); until then the signal ends the process at
            once, and from then on it raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.working = False
        self._waiting = False
        self._own = False

    def begin(self) -> None:
        """Take the place of Python's own answer."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self)
            sys.unraisablehook = self._unraisable

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        """Answer the signal, which came while ``frame`` was running."""
        own, self._own = self._own, False
        if not self.working or (self._waiting and not own):  # nothing is under way, or Ctrl-C came twice
            end_at_once()
        self._waiting = _is_importing(frame)
        if not self._waiting:
            raise KeyboardInterrupt
        self._look_again()

    def _look_again(self) -> None:
        timer = threading.Timer(AGAIN_SECONDS, self._repeat)
        timer.daemon = True
        timer.start()

    def _repeat(self) -> None:
        """Send this process the signal, which Python gives to the main thread."""
        self._own = True
        os.kill(os.getpid(), signal.SIGINT)

    def _unraisable(self, unraisable: Any) -> None:
        """Raise KeyboardInterrupt a moment later where Python can only print it; print what is another error."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._look_again()
        else:
            sys.__unraisablehook__(unraisable)


def begin_work() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on, if a `CtrlC` answers it in this process."""
    answer = signal.getsignal(signal.SIGINT)
    if isinstance(answer, CtrlC):
        answer.working = True


def end_at_once() -> None:
    """End the process with the word and the exit code, and without what the interpreter has still to do."""
    try:
        os.write(2, f"{WORD}\n".encode())
    finally:
        os._exit(INTERRUPTED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            return True
        frame = frame.f_back
    return False
