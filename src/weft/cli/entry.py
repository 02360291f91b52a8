"""Where the command line begins, before anything slow is imported: Ctrl-C ends it with one line from here on."""

from __future__ import annotations

import gc
import os
import sys
from typing import TextIO

from weft.cli.ctrl_c import CtrlC

SEARCHES = (10_000, 20, 10)
"""How many new objects there are between Python's searches for cycles that nothing refers to. The libraries that a
command imports make millions of objects, nearly all of which stay; with a search after every 700, Python's own setting,
a command takes half a second longer to begin."""


def run() -> None:
    """Entry point of the ``weft`` script and of ``python -m weft``. Raises `SystemExit`: with the exit code of the
    command, see `weft.cli.failures.run`."""
    CtrlC().begin()
    _complete_streams()
    _require_folder()
    gc.set_threshold(*SEARCHES)
    from weft.cli.main import run as command

    try:
        command()
    finally:
        _end_at_once()


def _complete_streams() -> None:
    """Put the null device in the place of each standard stream that is closed, which Python shows as None. A file that
    is opened later would otherwise have the stream's number, and receive what libraries print."""
    streams: list[TextIO | None] = [sys.stdin, sys.stdout, sys.stderr]
    for number, stream in enumerate(streams):
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            streams[number] = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdin, sys.stdout, sys.stderr = streams


def _require_folder() -> None:
    """End with one line where the current folder has been deleted; libraries of torch end the process there. Raises
    `SystemExit`: it has."""
    try:
        os.getcwd()
    except OSError as error:
        print(f"error: the current folder cannot be used ({error.strerror}). Change to another.", file=sys.stderr)
        raise SystemExit(2) from None


def _end_at_once() -> None:
    """From here on Ctrl-C ends the process by the signal itself: the interpreter, which waits for threads and
    finalises modules, would print where it was."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
