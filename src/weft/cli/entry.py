"""Where the command line begins, before anything slow is imported: Ctrl-C ends it with one line from here on."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""`weft.cli.failures.INTERRUPTED`, whose module is not imported yet."""


def run() -> None:
    """Entry point of the ``weft`` script and of ``python -m weft``.

    Raises:
        SystemExit: with the exit code of the command, see `weft.cli.failures.run`.
    """
    try:
        from weft.cli.main import run as command
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    try:
        command()
    finally:
        _end_at_once()


def _end_at_once() -> None:
    """From here on Ctrl-C ends the process by the signal itself: the interpreter, which waits for threads and
    finalises modules, would print where it was."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
