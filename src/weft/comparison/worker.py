"""A process that does pieces of work, each in a fork of its own: ``python -m weft.comparison.worker``.

It reads the name of a job's file from a line of standard input, forks, writes on standard output in lines of JSON how
far the work is and how its process ended, and reads on. So a study imports PyTorch once, which costs seconds, and every
piece of work still has memory of its own. It ends with the process that started it, and so does the work.

Where a fork is not safe, it does one job itself and ends: on other systems than Linux, where numerical libraries work
in a fork, and on other devices than a CPU, whose drivers do not, once an import has touched them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # every optimizer imports it, for which each fork would pay again

from weft.comparison.jobs import LOG_FILE, Job
from weft.comparison.work import do
from weft.core.registry import load_plugin
from weft.training.code import weft_code

INTERRUPTED, STANDARD_INPUT, STANDARD_ERROR = 130, 0, 2


def main() -> int:
    """Do the pieces of work that standard input names."""
    weft_code()  # that which has just been imported, whatever becomes of the files
    while path := _line():
        if not _forks(path):
            _write({"pid": os.getpid()})
            return work(path)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C waits until the fork can take it
        pid = os.fork()
        if pid == 0:
            _leave(path)
        _write({"pid": pid})
        _, status = os.waitpid(pid, 0)
        _write({"code": os.waitstatus_to_exitcode(status)})
    return 0


def work(path: str) -> int:
    """Do the piece of work that a file describes; the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    data = json.loads(Path(path).read_bytes())
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if sys.platform == "linux":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for plugin in data["plugins"]:
            load_plugin(Path(plugin))
        job = Job.from_json(data)
        torch.set_num_threads(job.threads)
        outcome = do(job, report)
        if outcome.status == "interrupted":
            _write({"interrupted": outcome.note})
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def report(line: str, step: int, steps: int) -> None:
    """One line of JSON on standard output."""
    _write({"line": line, "step": step, "steps": steps})


def _forks(path: str) -> bool:
    return sys.platform == "linux" and bool(json.loads(Path(path).read_bytes())["device"] == "cpu")


def _leave(path: str) -> NoReturn:
    """Do a piece of work in this fork, and end it without what the parent has still to do."""
    code = 1
    try:
        log = os.open(Path(path).parent / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, STANDARD_ERROR)
        code = work(path)
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


if __name__ == "__main__":
    sys.exit(main())
