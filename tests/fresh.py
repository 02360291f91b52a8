"""Processes of their own that need not import torch anew: one server has imported everything, and each is its fork.

What runs there leaves no trace in the process of the tests; the parts of a plugin stay unknown to it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import pytest

from weft.core.registry import REGISTRY
from weft.laws import LAWS, examine_far

PRELOADED = ["unmeasured", "torch._dynamo", "weft.api", "weft.laws", "weft.training", "weft.training.together.saving",
             "weft.parallel.fsdp", "weft.comparison", "weft.cli.check", "weft.cli.compare", "weft.cli.data",
             "weft.cli.evaluate", "weft.cli.generate", "weft.cli.plan", "weft.cli.train", "torch._dynamo.debug_utils",
             "torch._dynamo.backends.inductor", "torch._dynamo.repro.after_dynamo", "torch.nn.attention.flex_attention",
             "torch.distributed.tensor.experimental._attention"]
"""What the server imports besides all parts; a first step of training would import torch._dynamo, which takes seconds,
one on a mesh torch's sharding and distributed checkpoints, and a first compilation, such as that of `weft check`,
PyTorch's backends, half a second."""

sys.path.append(str(Path(__file__).parents[1]))
"""A process finds what it runs by its module, which is `tests.laws.test_x` wherever pytest was started."""

NEAR = 1_200
"""Tokens of the far rows of `check_near`."""


@dataclass(frozen=True)
class Ended:
    """How a process has ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


@final
class Fresh:
    """A process that runs ``work(*arguments)``.

    Args:
        work: a function of a module.
        arguments: what can be pickled.
        folder: where it runs.
        environment: variables that it has besides those that the tests began with.
    """

    def __init__(self, work: Callable[..., None], *arguments: object, folder: Path,
                 environment: Mapping[str, str] | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, *_parts()])
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        self._process = context.Process(target=_work, args=(work, arguments, folder, dict(environment or {}),
                                                            *self._files, gc.get_threshold()))
        self._process.start()

    def wait_for(self, text: str, seconds: float = 240) -> None:
        """Wait until it has written ``text`` to its standard output."""
        last = time.monotonic() + seconds
        while text not in self._files[0].read_text("utf-8"):
            if not self._process.is_alive() or time.monotonic() > last:
                assert text in self._files[0].read_text("utf-8"), f"no {text!r} in\n{self.end(0)}"
            time.sleep(0.01)

    def printed(self) -> str:
        """What it has written to its standard output so far."""
        return self._files[0].read_text("utf-8")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process.pid is not None, "it has been started"
        os.kill(self._process.pid, number)

    def end(self, seconds: float = 240) -> Ended:
        """Wait for it, and kill it when it takes longer than that."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        assert self._process.exitcode is not None, "it has been waited for"
        texts = [file.read_text("utf-8") for file in self._files]
        self._folder.cleanup()
        return Ended(self._process.exitcode, *texts)


def _parts() -> list[str]:
    """The modules of Weft's own parts, which every configuration that is read looks up: a fifth of a second."""
    return sorted({part.__module__ for part in REGISTRY.parts() if part.__module__.startswith("weft.")})


def fresh(work: Callable[..., None], *arguments: object, folder: Path) -> Ended:
    """``work(*arguments)`` in a process of its own in ``folder``."""
    return Fresh(work, *arguments, folder=folder).end()


def _work(work: Callable[..., None], arguments: tuple[object, ...], folder: Path, environment: dict[str, str],
          stdout: Path, stderr: Path, thresholds: tuple[int, int, int]) -> None:
    gc.freeze()  # what the server has imported stays, and a search through it would copy its memory
    gc.set_threshold(*thresholds)  # as rarely as the tests do
    for stream, path in ((sys.stdout, stdout), (sys.stderr, stderr)):
        with path.open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # `wait_for` reads it
    os.environ.update(environment)
    os.chdir(folder)
    work(*arguments)


def weft(*arguments: str) -> None:
    """``python -m weft ARGUMENTS``, for `fresh`."""
    sys.argv = ["weft", *arguments]
    runpy.run_module("weft", run_name="__main__")


def check_near(patch: pytest.MonkeyPatch, *, traced: bool = False) -> None:
    """Let checks read far rows of 1,200 tokens, past a thousand keys, 3,000 for stability, and make 32 calls, where
    `weft check` reads 4,200 and 100,000 and makes 3,100; and, unless they are to be ``traced``, leave out the law of
    compilation. These take three quarters of the time of a check of a small model. `laws/test_long_laws.py` holds the
    laws to their lengths, and the commands of the README and of a plugin's page are run as they are."""
    module = sys.modules["weft.laws.check"]  # whose name in `weft.laws` is that of its function
    patch.setattr(module, "LONGEST", NEAR)
    patch.setattr(module, "examine_far", partial(examine_far, tokens=3_000, calls=32))
    if not traced:
        patch.delitem(LAWS, "compile")


def weft_near(*arguments: str) -> None:
    """`weft`, whose checks are those of `check_near`."""
    check_near(pytest.MonkeyPatch())  # the process ends with the command
    weft(*arguments)
