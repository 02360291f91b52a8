"""Signs of life of ranks: one that is silent ends the others, sooner where they were told to end.

Two ranks that train, one of which is stopped, are in tests/integration/test_data_parallel.py.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from torch.distributed import HashStore

from fresh import fresh
from weft.training import heartbeat
from weft.training.heartbeat import FAILED, Heartbeat

LONG, SHORT = 300.0, 0.6


def wait(silent: float, signalled: float, told: int | None, answers: bool, seconds: float) -> None:
    """Be rank 0 of two for some seconds, of which rank 1 counts only if it ``answers``; send this process a signal,
    whose handler does nothing, as one of a main thread that waits in a library."""
    heartbeat.BEAT_SECONDS, heartbeat.SILENT_SECONDS, heartbeat.SIGNALLED_SECONDS = 0.1, silent, signalled
    store = HashStore()
    with Heartbeat(store, 0, 2, lambda: None):
        if told is not None:
            signal.signal(told, lambda *_: None)
            os.kill(os.getpid(), told)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            if answers:
                store.add("weft.alive.1", 1)
    print("waited", flush=True)


@pytest.mark.parametrize(("silent", "signalled", "told", "answers", "given_up"), [
    (LONG, SHORT, signal.SIGTERM, False, True), (LONG, SHORT, signal.SIGINT, False, True),
    (LONG, SHORT, None, False, False), (SHORT, LONG, None, False, True),
    (LONG, SHORT, signal.SIGTERM, True, False)])
def test_a_silent_rank_is_given_up_sooner_once_this_one_was_told_to_end(
        silent: float, signalled: float, told: int | None, answers: bool, given_up: bool, tmp_path: Path) -> None:
    ended = fresh(wait, silent, signalled, told, answers, 100.0 if given_up else 2.5, folder=tmp_path)
    if given_up:
        assert ended.returncode == FAILED and "waited" not in ended.stdout
        assert ended.stderr == ("error: rank 0: rank 1 has not answered for 1 seconds, as a process that is stopped or "
                                "hangs does; no checkpoint had been saved yet. End that process, then go on with "
                                "--resume.\n")
    else:
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "waited\n", "")
