"""Having a piece of work done, in a process of its own or in this one, unless it has been done before."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from weft.checkpoints.atomic import write_file
from weft.comparison.jobs import JOB_FILE, LOG_FILE, Job, Outcome, read_outcome, write_outcome
from weft.comparison.work import Tell, do
from weft.core.errors import FailedError

Launch: TypeAlias = Callable[[Job, Tell], Outcome]
LAST_LINES = 3


def done(job: Job, launch: Launch, tell: Tell) -> Outcome:
    """The outcome of a piece of work that was done before, or that is done now.

    A folder that holds other work under this name is emptied first; work that was interrupted goes on.
    """
    outcome = read_outcome(job)
    if outcome is not None:
        return outcome
    if _begun(job) != job.key():
        shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_file(job.folder / JOB_FILE, json.dumps({"key": job.key(), **job.to_json()}, indent=1) + "\n")
    return launch(job, tell)


def in_this_process(job: Job, tell: Tell) -> Outcome:
    """Without a process of its own: quicker, but peak memory is then that of everything before, too."""
    return do(job, tell)


def in_own_process(job: Job, tell: Tell) -> Outcome:
    """A process per piece of work: its memory is its own, and the study survives its end.

    Raises:
        KeyboardInterrupt: Ctrl-C; the process has saved its run then.
    """
    with (job.folder / LOG_FILE).open("ab") as log, subprocess.Popen(
            [sys.executable, "-m", "weft.comparison.worker", str(job.folder / JOB_FILE)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, start_new_session=True) as process:
        try:
            _listen(process, tell)
            code = process.wait()
        except KeyboardInterrupt:
            _wait_or_end(process)
            raise
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    outcome = read_outcome(job)
    if outcome is None:
        outcome = Outcome("failed", _reason(job, code))
        write_outcome(job, outcome)
    return outcome


def _listen(process: subprocess.Popen[bytes], tell: Tell) -> None:
    assert process.stdout is not None, "standard output is a pipe"
    for line in process.stdout:
        try:
            told = json.loads(line)
        except ValueError:
            continue  # what a library prints
        tell(str(told["line"]), int(told["step"]), int(told["steps"]))


def _wait_or_end(process: subprocess.Popen[bytes]) -> None:
    """Pass Ctrl-C on: the process saves its run and ends. A second Ctrl-C does not wait for it."""
    with suppress(KeyboardInterrupt):
        process.send_signal(signal.SIGINT)
        process.wait()
        return
    process.kill()


def _reason(job: Job, code: int) -> str:
    """Why a process ended without an outcome."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    lines = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"its process ended with code {code}: {' / '.join(lines[-LAST_LINES:]) or 'no message'}"


def _begun(job: Job) -> str | None:
    """The key of the work that a folder was begun with."""
    try:
        key = json.loads((job.folder / JOB_FILE).read_bytes())["key"]
    except (OSError, ValueError, KeyError):
        return None
    return str(key)


def require_done(outcome: Outcome, where: str) -> Outcome:
    """The outcome of work that the study cannot do without.

    Raises:
        FailedError: it failed.
    """
    if outcome.status != "finished":
        raise FailedError(outcome.note, where=where, remedy="Correct its configuration, or leave the model out.")
    return outcome
