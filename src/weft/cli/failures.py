"""The last line of defence: what a command does not explain itself ends it with one line, never with a traceback."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.cli.ctrl_c import INTERRUPTED, WORD
from weft.core.errors import from_ctrl_c, lacks_memory
from weft.core.version import VERSION

FAILED, WRONG = 1, 2
"""Exit codes: work that failed, what the user can correct."""

MOST_CHARACTERS = 300
"""Of an error's own text in the line."""

def run(command: Callable[[], None]) -> None:
    """Run the whole command line. Whatever it leaves unexplained becomes one line on standard error. Raises
    `SystemExit`: with the exit code of the command; 1 for what it left unexplained; 130 after Ctrl-C; 0 if the reader
    of its output went away, which is no failure."""
    try:
        with _flushed():
            command()
    except BrokenPipeError:
        close_output()
        raise SystemExit(0) from None
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # click has caught it, and ends with 1
            close_output()
            raise SystemExit(0) from None
        raise
    except BaseException as error:  # panics of libraries written in Rust are no Exception
        line, code = (WORD, INTERRUPTED) if from_ctrl_c(error) else explained(error)
        _say(line)
        raise SystemExit(code) from None


def explained(error: BaseException) -> tuple[str, int]:
    """One line about an error that no command explains, and the exit code. Details are written to a file where the
    error may be a defect of Weft."""
    what = in_one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    if "weft.core.registry" in sys.modules:  # without it no plugin has been loaded
        from weft.core.registry import plugin_place

        if place := plugin_place(error):
            return f"error: the plugin {place}, failed: {what} ({_details(error)})", FAILED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = "" if error.filename is None else f"{in_one_line(str(error.filename))}: "
        return f"error: {where}writing failed: {error.strerror}. Free space, or write to another disk.", FAILED
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"error: {in_one_line(str(error.filename))}: {error.strerror}. Check the path.", WRONG
    if isinstance(error, OSError) and error.strerror:
        return f"error: reading or writing failed: {error.strerror}.", FAILED
    if lacks_memory(error):
        return f"error: not enough memory ({what}). Give a smaller model, batch or context.", FAILED
    return f"internal error: {what} ({_details(error)})", FAILED


def in_one_line(text: str) -> str:
    """``text`` without line ends, shortened in its middle to at most 300 characters."""
    flat = " ".join(text.split())
    half = MOST_CHARACTERS // 2
    return flat if len(flat) <= MOST_CHARACTERS else f"{flat[:half]} ... {flat[-half:]}"


def close_output() -> None:
    """Let go of standard output, whose reader has closed the pipe: what is left in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave_for_torchrun(line: str) -> None:
    """Leave the error in the file that `torchrun` gives each process, if this is one. torchrun ends with a page about
    the processes; it then repeats the error there as the cause, and otherwise says that it knows none."""
    place = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if place:
        facts = {"py_callstack": line, "timestamp": str(int(time.time()))}
        with suppress(OSError):  # the error has been printed
            Path(place).write_text(json.dumps({"message": {"message": line, "extraInfo": facts}}), encoding="utf-8")


@contextmanager
def _flushed() -> Iterator[None]:
    """Write out what is buffered within the block, so that what fails then is not left to the interpreter's end."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        return  # standard error is closed or full, and the exit code tells it


def _details(error: BaseException) -> str:
    """Write the traceback to a new file of the system's folder for temporary files, and say where."""
    lines = [f"weft {VERSION}, Python {sys.version}", f"arguments: {sys.argv[1:]!r}", "",
             *traceback.format_exception(error)]
    try:
        number, name = tempfile.mkstemp(prefix="weft-error-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError:
        return "its details could not be written"
    return f"details in {Path(name)}"
