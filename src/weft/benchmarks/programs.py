"""Running programs that a model has written, each in processes with limits, and judging them by tests.

Two processes belong to a program (`weft.confinement`). One runs the program's code and never has the tests. The other
runs the tests, asks the first for what they call, gets plain data back, and compares it; it tells the verdict when the
first has ended. What holds the program's process, from the outside in:

* namespaces of users, processes, networks, mounts and IPC of its own, where the system allows that (Linux);
* limits on time, memory and open files, no environment, no input, no output, and nothing that it may write to;
* on Linux with Landlock (5.13): no file but Python's own modules and the system's libraries can be read, and none
  changed; no other process's memory can be reached; with 6.7 no TCP, with 6.12 no signals to other processes;
* on Linux on x86-64 and ARM64, by a filter of system calls (seccomp) with a list of those that are allowed: no
  processes, threads, sockets, signals, priorities, locks or changes of files;
* everywhere, by Python's audit hooks: the same, as far as Python's own functions go.

Its whole group is killed when time is up, and the kernel ends it when the other process ends. Nothing of it lies on the
disk, so there is nothing to delete.

What it is not: a virtual machine. The same kernel runs it, so a defect of the kernel is open to it. Without Landlock
and seccomp (macOS, older kernels) only the audit hooks and limits stand, and a program that sets out to get round those
can; macOS does not enforce the limit of memory. Without Landlock a program may read every file that the user may read.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from weft.confinement.process import ConfinedProcess
from weft.core.errors import FailedError, UnsupportedError
from weft.core.strict_json import Record

MOST = 4096
"""Bytes of a line that tells how a program ended."""
PATIENCE = 4
"""Wall time of a program, in its limits of processor time: no verdict depends on what else the machine does, unless a
program is given less than a quarter of a processor."""
PROBE = ("import bisect, cmath, collections, functools, heapq, itertools, math, operator, random, re, string\n"
         "def answer(): return 42", ("assert answer() == 42",))
"""A program that must pass wherever programs can be run, and its test."""


@dataclass(frozen=True)
class Limits(Record):
    """The time, memory and files that a program may use.

    Attributes:
        seconds: of processor time, rounded up; it may wait `PATIENCE` times as long. The slowest solution that comes
            with MBPP (123) takes 6; others allow 3 of wall time (code_eval of evaluate), or four times what a problem's
            own solution takes (EvalPlus).
        memory: bytes of its addresses, the interpreter's included.
        files: that are open at once.
    """

    seconds: float = 10.0
    memory: int = 1 << 29
    files: int = 64

    def describe(self) -> str:
        """The limits in words."""
        return f"{self.seconds:g} seconds of a processor, {self.memory >> 20:,} MiB, {self.files} open files"


@dataclass(frozen=True)
class ProgramEnd(Record):
    """How a program ended.

    Attributes:
        passed: whether it and all of its tests ran to their end.
        outcome: ``passed``; the name of the exception that ended it or a test; ``time`` if it was killed when its time
            was up; or ``ended`` if it was killed by the system or ended itself.
        by: the system's means of confinement that were in force: ``namespaces``, ``landlock``, ``seccomp``.
    """

    passed: bool
    outcome: str
    by: tuple[str, ...]


def run_program(source: str, tests: Sequence[str], setup: str = "", limits: Limits | None = None) -> ProgramEnd:
    """Run a program, and then tests of it in another process.

    A test's names are its own, Python's, those of modules of the standard library, and otherwise the program's. What it
    gives to the program and gets from it is plain data, copied, or an object of the program's, which equals nothing but
    itself.

    Args:
        tests: Python, such as assert statements.
        setup: Python that is run before the tests, and like them.
        limits: None: the usual ones.

    Raises:
        UnsupportedError: the system has no limits for processes (Windows).
        FailedError: the process could not be started or confined.
    """
    if os.name != "posix":
        raise UnsupportedError("this system has no limits for processes, without which no program is run.",
                               where="run_programs", remedy="Use Linux or macOS, or a container.")
    limits = Limits() if limits is None else limits
    until = time.monotonic() + PATIENCE * limits.seconds
    try:
        process = ConfinedProcess("weft.confinement.judging", (limits.memory, math.ceil(limits.seconds), limits.files))
    except OSError as error:
        raise FailedError(f"no process can be started ({error.strerror}).", where="run_programs",
                          remedy="Free memory or processes, and try again.") from None
    by: tuple[str, ...] = ()
    try:
        asked = json.dumps({"source": source, "setup": setup, "tests": list(tests)}).encode("ascii")
        by = tuple(json.loads(process.exchange(asked + b"\n", until, MOST) or b"[]"))
        outcome = json.loads(process.exchange(b"", until, MOST) or b'"ended"')
    except TimeoutError:
        outcome = "time"
    finally:
        process.end()
    return ProgramEnd(outcome == "passed", outcome, by)


def require_running() -> tuple[str, ...]:
    """Run a program that needs nothing but the interpreter and common modules; the means that confined it. Raises
    `FailedError`: it does not run, so no result would mean anything."""
    ran = run_program(*PROBE, limits=Limits(seconds=30))
    if not ran.passed:
        raise FailedError(f"a program that must pass ends with {ran.outcome!r}.", where="run_programs",
                          remedy="See weft.benchmarks.programs for what confines programs; the interpreter must be "
                          "readable there.")
    return ran.by
