"""A process of its own for each case, with limits of time and memory, and what is a fault in how it ends."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ALLOWED = (0, 1, 2, 130)
"""Exit codes of the command line."""
BAD_WORDS = ("Traceback (most recent call last)", "internal error", "panicked at", "Exception ignored")
"""What no output may say."""
OUT_OF_TIME = "it does not end in time"
MEMORY = 6 << 30
"""Bytes of address space above what the process has when it begins."""


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        fault: what was wrong with it; empty for nothing.
        text: what it wrote to standard error, shortened.
    """

    fault: str
    text: str


def run(work: Callable[[], None], folder: Path, seconds: float) -> Ended:
    """Run ``work`` in a fork of this process, in ``folder``, for so many seconds of processor time at most (and three
    times as many by the clock, since the machine may be busy)."""
    said = folder / "stderr"
    child = os.fork()
    if not child:
        _child(work, folder, said, seconds)
    code = _waited(child, 3 * seconds)
    text = said.read_text("utf-8", "replace") if said.exists() else ""
    return Ended(_fault(code, text), text[-3_000:])


def _child(work: Callable[[], None], folder: Path, said: Path, seconds: float) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(child: int, seconds: float) -> int:
    """The exit code of a process: the negative number of the signal that ended it. It is waited for so many seconds by
    the clock, of which a pause of this process, as of a whole machine that was suspended, counts as one."""
    last = time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        seconds -= min(now - last, 1.0)
        last = now
        if seconds < 0:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGXCPU
        time.sleep(0.002)


def _fault(code: int, text: str) -> str:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return OUT_OF_TIME
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    if code not in ALLOWED:
        return f"exit code {code}"
    return next((f"it says {each!r}" for each in BAD_WORDS if each in text), "")
