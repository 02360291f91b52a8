"""Running programs that a model has written, each in a process of its own with limits.

What confines a program, from the outside in:

* a process of its own in a new session, without Python's other packages, in an empty temporary folder that is deleted
  afterwards, with an environment of five variables, no input, no output, and no open files but the report's;
* limits of the system on time, memory, the size of a file and open files; its whole group is killed when time is up;
* on Linux with Landlock (5.13, with networks 6.7): no file outside the folder can be changed or executed, no TCP, and
  no signals to other processes (6.12);
* on Linux on x86-64 and ARM64, by a filter of system calls (seccomp): no new processes, no sockets of any kind, no
  tracing, no changes of owners, modes and times of files;
* everywhere, by Python's audit hooks: no processes, sockets or ctypes, and no changes of files outside the folder.

What it is not: a virtual machine. A program may read every file that the user may read. It runs on the same kernel, so
a defect of the kernel is open to it. Without Landlock and seccomp (macOS, older kernels) only the audit hooks and
limits stand, and a program that sets out to get round those can; macOS does not enforce the limit of memory. Files in
the folder are bounded each, not in number. A program that sets out to deceive its judge can do so.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from weft.core.errors import FailedError, UnsupportedError
from weft.core.strict_json import Record

CONFINED = Path(__file__).with_name("confined.py")
MOST, NAME = 4096, 80
"""Bytes of the report that are read, and of the name of an exception in it."""
PROBE = "import bisect, cmath, collections, functools, heapq, itertools, math, operator, random, re, string"
"""A program that must pass wherever programs can be run."""


@dataclass(frozen=True)
class Limits(Record):
    """What a program may use.

    Attributes:
        seconds: of wall time and of processor time, rounded up.
        memory: bytes of its addresses, the interpreter's included.
        file_bytes: bytes of each file that it writes.
        files: that are open at once.
    """

    seconds: float = 3.0
    memory: int = 1 << 29
    file_bytes: int = 1 << 20
    files: int = 64

    def describe(self) -> str:
        """The limits in words."""
        return (f"{self.seconds:g} seconds, {self.memory >> 20:,} MiB, files of {self.file_bytes >> 20:,} MiB, "
                f"{self.files} of them open")


@dataclass(frozen=True)
class Ran(Record):
    """How a program ended.

    Attributes:
        passed: whether it ran to its end.
        outcome: ``passed``; the name of the exception that ended it; ``time`` if it was killed when its time was up; or
            ``ended`` if it was killed by the system or ended itself.
        by: the kernel's means of confinement that were in force: ``landlock``, ``seccomp``.
    """

    passed: bool
    outcome: str
    by: tuple[str, ...]


def run_program(source: str, limits: Limits | None = None) -> Ran:
    """Run a program that is to end without an exception.

    Args:
        source: Python.
        limits: None: the usual ones.

    Raises:
        UnsupportedError: the system has no limits for processes (Windows).
        FailedError: the process could not be started or confined.
    """
    if os.name != "posix":
        raise UnsupportedError("this system has no limits for processes, without which no program is run.",
                               where="run_programs", remedy="Use Linux or macOS, or a container.")
    limits, token = Limits() if limits is None else limits, token_hex(16)
    with tempfile.TemporaryDirectory(prefix="weft-program-", ignore_cleanup_errors=True) as folder:
        report, write = os.pipe()
        process = _started(folder, write, limits)
        try:
            assert process.stdin is not None, "a pipe was asked for"
            _give(process, f"{token}\n{source}".encode("utf-8", "replace"))
            told, late = _told(report, time.monotonic() + limits.seconds)
        finally:
            os.close(report)
            _kill(process)
    return _ran(told, late, token)


def require_running() -> tuple[str, ...]:
    """Run a program that needs nothing but the interpreter and common modules; the means that confined it.

    Raises:
        FailedError: it does not run, so no result would mean anything.
    """
    ran = run_program(PROBE, Limits(seconds=30))
    if not ran.passed:
        raise FailedError(f"a program that must pass ends with {ran.outcome!r}.", where="run_programs",
                          remedy="See weft.benchmarks.programs for what confines programs; the interpreter must be "
                          "readable there.")
    return ran.by


def _started(folder: str, write: int, limits: Limits) -> subprocess.Popen[bytes]:
    numbers = (write, limits.memory, max(1, round(limits.seconds + 0.5)), limits.file_bytes, limits.files)
    environment = {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PATH": os.defpath, "PYTHONHASHSEED": "0"}
    try:
        return subprocess.Popen([sys.executable, "-I", "-S", "-B", "-X", "utf8", str(CONFINED), *map(str, numbers)],
                                cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, pass_fds=(write,), start_new_session=True)
    except OSError as error:
        raise FailedError(f"no process can be started ({error.strerror}).", where="run_programs",
                          remedy="Free memory or processes, and try again.") from None
    finally:
        os.close(write)


def _give(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None, "a pipe was asked for"
    with suppress(BrokenPipeError):  # it has ended already, and its report says how
        process.stdin.write(content)
        process.stdin.close()


def _told(report: int, until: float) -> tuple[bytes, bool]:
    """What the process reports until it ends, and whether its time was up before."""
    told = b""
    while len(told) < MOST:
        left = until - time.monotonic()
        if left <= 0 or not select.select([report], [], [], left)[0]:
            return told, True
        more = os.read(report, MOST)
        if not more:
            break
        told += more
    return told, False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and all of its group."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says the second of a group that has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ran(told: bytes, late: bool, token: str) -> Ran:
    first, begun, rest = told.partition(b"\n")
    if not begun:
        return Ran(False, "time" if late else "ended", ())
    by, said = tuple(json.loads(first)), rest.decode("utf-8", "replace")
    if said == token:
        return Ran(True, "passed", by)
    return Ran(False, "time" if late else said if len(said) <= NAME and said.isidentifier() else "ended", by)
