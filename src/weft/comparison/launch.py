"""Has a piece of work done, in a process of its own or in this one, unless it has been done before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeAlias, final

import torch

from weft.comparison.curve import OnProgress
from weft.comparison.jobs import JOB_FILE, LOG_FILE, Job, Outcome, empty, read_outcome
from weft.comparison.work import do
from weft.disk.atomic import tidy, write_file

Launch: TypeAlias = Callable[[Job, OnProgress], Outcome]
LAST_LINES = 3


def done(job: Job, launch: Launch, on_progress: OnProgress) -> Outcome:
    """The outcome of a piece of work that was done before, or that is done now.

    A folder that holds other work under this name is emptied first; work that was interrupted goes on. Interrupted work
    leaves no outcome, so that it is done when it is asked for again.
    """
    outcome = read_outcome(job)
    if outcome is not None:
        return outcome
    if _begun(job) != job.key():
        empty(job.folder)
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        tidy(job.folder)
        write_file(job.folder / JOB_FILE, json.dumps({
            "key": job.key(), "key_without_code": job.key_without_code(), **job.to_json(), "code": job.code()},
            indent=1) + "\n")
    except OSError as error:
        return Outcome("interrupted", f"its folder cannot be written to ({error.strerror or error})")
    return launch(job, on_progress)


def in_this_process(job: Job, on_progress: OnProgress) -> Outcome:
    """Without a process of its own: quicker, but peak memory is then that of everything before, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        return do(job, on_progress)
    finally:
        torch.set_num_threads(before)


@final
class OwnProcesses:
    """Each piece of work in a process of its own: its memory is its own, and the study survives its end.

    The processes are forked from one that has imported everything (see `weft.comparison.worker`), which is started for
    the first piece of work and again whenever it is gone. Used in ``with``, which ends it.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: int | None = None
        self._trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __call__(self, job: Job, on_progress: OnProgress) -> Outcome:
        """Have ``job`` done, whose file lies in its folder. A process that ends without an outcome, however that comes
        about, was interrupted: its end says nothing of the model.

        Raises:
            KeyboardInterrupt: Ctrl-C; the process has saved its run then.
        """
        self._trouble = ""
        try:
            code = self._done(job, on_progress)
        except KeyboardInterrupt:
            self._wait_or_end()
            raise
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        return read_outcome(job) or Outcome("interrupted", self._trouble or _reason(job, code))

    def _done(self, job: Job, on_progress: OnProgress) -> int:
        """The exit code of the process that does a job; if that is lost, of the one that was to fork it."""
        server = self._serving(job)
        assert server.stdin is not None and server.stdout is not None, "both are pipes"
        with suppress(BrokenPipeError):  # the process has ended, and its exit code is read below
            server.stdin.write(f"{job.folder / JOB_FILE}\n".encode())
            server.stdin.flush()
        for line in server.stdout:
            message = _message(line)
            if "code" in message:
                self._worker = None
                return int(message["code"])
            if "pid" in message:
                self._worker = int(message["pid"])
            elif "interrupted" in message:
                self._trouble = str(message["interrupted"])
            elif "line" in message:
                on_progress(str(message["line"]), int(message["step"]), int(message["steps"]))
        self._worker = None  # no process is left that could write
        return self._close()

    def _serving(self, job: Job) -> subprocess.Popen[bytes]:
        if self._server is None or self._server.poll() is not None:
            self._close()
            with (job.folder / LOG_FILE).open("ab") as log:
                self._server = subprocess.Popen([sys.executable, "-m", "weft.comparison.worker"], stderr=log,
                                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        return self._server

    def _wait_or_end(self) -> None:
        """Pass Ctrl-C on: the process saves its run and ends. A second Ctrl-C does not wait for it."""
        server = self._server
        if server is None:
            return
        with suppress(KeyboardInterrupt):
            with suppress(ProcessLookupError):
                os.kill(self._worker or server.pid, signal.SIGINT)
            assert server.stdout is not None
            while self._worker is not None and (line := server.stdout.readline()):
                if "code" in _message(line):
                    self._worker = None
            self._worker = None  # no process is left that could write
        self._close()

    def _close(self) -> int:
        """End what runs; the exit code of the process that forks."""
        server, self._server = self._server, None
        if server is None:
            return 0
        if self._worker is not None:
            with suppress(ProcessLookupError):
                os.kill(self._worker, signal.SIGKILL)
            self._worker = None
        with suppress(BrokenPipeError), server:
            assert server.stdin is not None and server.stdout is not None, "both are pipes"
            server.stdin.close()
            server.stdout.read()  # what it still writes
        return server.returncode


def _message(line: bytes) -> dict[str, Any]:
    """The content of a line; empty if a library has printed it."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _reason(job: Job, code: int) -> str:
    """Why a process ended without an outcome."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    if code == 0:
        return "the code or a plugin has changed since the study began; start the study again"
    lines = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"its process ended with code {code}: {' / '.join(lines[-LAST_LINES:]) or 'no message'}"


def _begun(job: Job) -> str | None:
    """The key of the work that a folder was begun with."""
    try:
        key = json.loads((job.folder / JOB_FILE).read_bytes())["key"]
    except (OSError, ValueError, KeyError):
        return None
    return str(key)
