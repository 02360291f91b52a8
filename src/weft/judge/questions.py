"""The process of a judged file, as it is asked: questions with a time limit, answers that are only data."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from weft.confinement.process import ConfinedProcess
from weft.core.errors import FailedError, UnsupportedError
from weft.judge.frames import LONGEST, FrameError, frame, read_frame

CONFINED_BY = ("landlock", "seccomp")
"""The means without which a file is not run, unless that is asked for: they hold its files, network and processes."""

PROCESSOR = ("/proc/cpuinfo", "/sys/devices/system/cpu")
"""Where PyTorch reads the processor's kind; without them it computes without vector instructions, at half the speed."""


class EndedError(Exception):
    """A process or an endpoint ended, hung or gave what is no answer; its sentence says which."""


class ModelError(Exception):
    """The model raised an error for a question; its sentence has the error."""


CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
"""That this process may use."""


@dataclass(frozen=True)
class FileLimits:
    """The time, memory and files that a judged file may use.

    Attributes:
        seconds: of wall time for the whole verdict.
        answer: seconds of wall time for one answer.
        memory: bytes of its addresses.
        written: bytes of the files in its own folder, all that it writes.
        threads: of each process's matrix products. Two processes answer at once, so by default there are two with four
            cores or more, and otherwise one.
        confined: whether the kernel must withhold other files, processes and the network.
    """

    seconds: float = 120.0
    answer: float = 30.0
    memory: int = 8 << 30
    written: int = 1 << 30
    threads: int = 2 if CORES >= 4 else 1
    confined: bool = True


@dataclass(frozen=True)
class Judged:
    """A Python file and the name of the model in it, with further folders that it may read, and variables of the
    environment that it is given."""

    path: Path
    call: str = "model"
    readable: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """Surroundings that must not matter to a model: random numbers (those of the time when it is made, and those
    of later), the clock's seconds ahead of the machine's, and variables of the environment."""

    seed: int = 0
    seed_later: int = 1
    clock: float = 0.0
    environment: tuple[tuple[str, str], ...] = ()


@final
class Worker:
    """A process that has loaded a file.

    Args:
        judged: the file.
        limits: of its process.
        world: what surrounds it.
        until: by `time.monotonic`, when it must have loaded the file.
    """

    def __init__(self, judged: Judged, limits: FileLimits, world: Surroundings, until: float) -> None:
        self._limits, self._until, path = limits, until, judged.path
        self.folder = Path(tempfile.mkdtemp())
        threads = str(limits.threads)
        environment = {"HOME": str(self.folder), "TMPDIR": str(self.folder), "OMP_NUM_THREADS": threads,
                       "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
                       **dict(judged.environment), **dict(world.environment)}
        try:
            self._process = ConfinedProcess("weft.judge.worker", (), [each for each in sys.path if each], environment,
                                            self._watch)
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise FailedError(f"no process can be started ({error.strerror}).", where="judge",
                              remedy="Free memory or processes, and try again.") from None
        asked = {"path": str(path), "call": judged.call, "folder": str(self.folder), "confined": limits.confined,
                 "torch": "torch" in path.read_text(encoding="utf-8", errors="replace"), "threads": limits.threads,
                 "memory": limits.memory, "written": limits.written,
                 "readable": [str(path.parent), *PROCESSOR, *judged.readable],
                 "seconds": int(limits.seconds * limits.threads) + 60, "seed": world.seed,
                 "seed_later": world.seed_later, "clock": world.clock}
        self._process.send(json.dumps(asked).encode("ascii") + b"\n")  # it loads the file while others answer
        self.by: tuple[str, ...] = ()
        self._begun = False

    def begin(self) -> dict[str, Any]:
        """The file's own account of its model, see `weft.judge.worker.Asked.about`, before the first question.

        Raises:
            UnsupportedError: this machine cannot confine it.
            EndedError: it has ended before it has answered anything.
            ModelError: the file cannot be loaded.
        """
        self._begun = True
        try:
            about, _ = self._exchange(b"", max(1.0, min(self._limits.answer + 60, self._until - time.monotonic())))
            self.by = tuple(map(str, about.get("by", ())))
            if self._limits.confined and not set(CONFINED_BY) <= set(self.by):
                raise UnsupportedError("this machine cannot keep the file from other files and the network (Landlock "
                                       "and seccomp of Linux 5.13 or later are missing).", where="judge",
                                       remedy="Judge it elsewhere, or in a container of its own with --unconfined.")
        except BaseException as error:
            self.end()
            if isinstance(error, ModelError):
                raise ModelError(f"the file cannot be loaded: {error}") from None
            raise
        return about

    def ask(self, question: str, *arrays: np.ndarray, seconds: float | None = None, **said: Any
            ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The answer to a question of `weft.judge.worker.Asked.answer`.

        Raises:
            EndedError: there is none.
            ModelError: the model raised an error.
        """
        if not self._begun:
            self.begin()
        return self._exchange(frame({"question": question, **said}, arrays), seconds or self._limits.answer)

    def _exchange(self, content: bytes, seconds: float) -> tuple[dict[str, Any], list[np.ndarray]]:
        until = time.monotonic() + seconds
        try:
            line = self._process.exchange(content, until, LONGEST)
            if not line:
                raise EndedError("its process ended by itself (out of memory, out of time, or a crash)")
            message, arrays = read_frame(line, lambda count: self._process.take(count, until))
            self._watch()
        except TimeoutError:
            raise EndedError(f"it gave no answer within {seconds:.3g} seconds") from None
        except (FrameError, OverflowError) as error:
            raise EndedError(f"its process wrote something that is no answer ({error or 'a line without an end'})"
                             ) from None
        if "error" in message:
            raise ModelError(str(message["error"]))
        return message, arrays

    def _watch(self) -> None:
        """Raise `EndedError` if it has written more than it may."""
        files = (os.path.join(at, name) for at, _, names in os.walk(self.folder) for name in names)
        with suppress(FileNotFoundError):  # one that it has deleted meanwhile
            if sum(4096 + 512 * os.lstat(each).st_blocks for each in files) > self._limits.written:
                raise EndedError(f"it wrote more than {self._limits.written >> 20:,} MiB of files")

    def end(self) -> None:
        """End the process and delete its folder."""
        self._process.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def elsewhere(world: Surroundings) -> Surroundings:
    """Surroundings that differ from others in all that a model must not depend on: the time, random numbers, and the
    environment (each process has a HOME and a working folder of its own, and draws its own hashes of texts)."""
    return replace(world, seed_later=world.seed_later + 1_234_567, clock=world.clock + 86_400 * 401.3,
                   environment=(("USER", "another"), ("LANG", "C"), ("TZ", "Asia/Tokyo"), ("CI", "true")))


def output_of(arrays: Sequence[np.ndarray], most: int = 3) -> np.ndarray:
    """The one array of an answer.

    Raises:
        EndedError: there is not one array of at most ``most`` dimensions.
    """
    if len(arrays) != 1 or arrays[0].ndim > most:
        raise EndedError("its process answered with something that is no array")
    return arrays[0]
