"""Has a piece of work done, in a process of its own or in this one, unless it has been done before.

Both ends of the pipe stand here: `OwnProcesses` writes the name of a job's file in a line, and `serve`, in the other
process, reads it, forks, and writes in lines of JSON how far the work is and how the fork ended. So a study imports
PyTorch once, which costs seconds, and every piece of work still has memory of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self, TypeAlias, final

import torch

from weft.analysis.arithmetic import threads_set
from weft.comparison.jobs import JOB_FILE, LOG_FILE, Job, OnProgress, Outcome, empty, read_outcome
from weft.comparison.work import do
from weft.core.process_settings import uncollected
from weft.core.registry import REGISTRY, load_plugin
from weft.disk.atomic import tidy, write_file
from weft.disk.documents import read_json
from weft.training.code import weft_code

Launch: TypeAlias = Callable[[Job, OnProgress], Outcome]
LAST_LINES = 3
INTERRUPTED, STANDARD_INPUT, STANDARD_ERROR = 130, 0, 2
SERVER = """
import sys
from weft.core.process_settings import uncollected
with uncollected():
    from weft.comparison.launch import serve
sys.exit(serve())
"""
"""What the process that forks runs: this module, by ``-m``, would be imported twice, once as ``__main__``."""


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
    with threads_set(job.threads):
        return do(job, on_progress)


@final
class OwnProcesses:
    """Each piece of work in a process of its own: its memory is its own, and the study survives its end.

    The processes are forked from one that has imported everything (`serve`), which is started for the first piece of
    work and again whenever it is gone. Used in ``with``, which ends it.
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
        about, was interrupted: its end says nothing of the model. Raises `KeyboardInterrupt`: Ctrl-C; the process has
        saved its run then."""
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
                self._server = subprocess.Popen([sys.executable, "-c", SERVER], stderr=log,
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
        key = read_json(job.folder / JOB_FILE)["key"]
    except (OSError, ValueError, KeyError):
        return None
    return str(key)


def serve() -> int:
    """Do the pieces of work that standard input names, each in a fork; end with the process that started this one, and
    so does the work.

    Where a fork is not safe, it does one job itself and ends: on other systems than Linux, where numerical libraries
    work in a fork, and on other devices than a CPU, whose drivers do not, once an import has touched them.
    """
    with uncollected():  # what each fork would import again
        importlib.import_module("torch._dynamo")  # every optimizer imports it
        REGISTRY.discover()
    weft_code()  # that which has just been imported, whatever becomes of the files
    while path := _line():
        if not (sys.platform == "linux" and bool(read_json(Path(path))["device"] == "cpu")):
            _write({"pid": os.getpid()})
            return _work(path)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C waits until the fork can take it
        pid = os.fork()
        if pid == 0:
            _leave(path)
        _write({"pid": pid})
        _, status = os.waitpid(pid, 0)
        _write({"code": os.waitstatus_to_exitcode(status)})
    return 0


def _work(path: str) -> int:
    """Do the piece of work that a file describes; the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data = read_json(Path(path))
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if sys.platform == "linux":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for plugin in data["plugins"]:
            load_plugin(Path(plugin))
        job = Job.from_json(data)
        torch.set_num_threads(job.threads)
        outcome = do(job, lambda line, step, steps: _write({"line": line, "step": step, "steps": steps}))
        if outcome.status == "interrupted":
            _write({"interrupted": outcome.note})
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _leave(path: str) -> NoReturn:
    """Do a piece of work in this fork, and end it without what the parent has still to do."""
    code = 1
    try:
        log = os.open(Path(path).parent / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, STANDARD_ERROR)
        code = _work(path)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _line() -> str:
    """The next line of standard input, without a byte of what follows: by that a fork notices the end of its parent."""
    read = b""
    while (byte := os.read(STANDARD_INPUT, 1)) not in (b"", b"\n"):
        read += byte
    return read.decode()


def _write(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def _end_with_parent() -> None:
    """Standard input is a pipe from the parent; it ends when the parent does, however that comes about. What has been
    saved stands, and everything after it is done again when the study is resumed."""
    # Not through sys.stdin: its lock would still be held when the interpreter shuts down, which aborts it.
    while os.read(STANDARD_INPUT, 1):
        pass
    os._exit(1)
