"""Signs of life of the ranks that train together: a rank that stops without ending is named, and the others end.

A process that is stopped (SIGSTOP), or hangs in a driver, closes no connection, so the others would wait for it in the
middle of a sum. A thread of each rank therefore counts in the shared store and looks whether the others do. It can end
its process also while the main thread waits in a library and no handler of a signal is called.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

BEAT_SECONDS = 5.0
SILENT_SECONDS = 300.0
"""After which a rank that has not counted is given up. No work of a rank keeps its other threads waiting so long."""
SIGNALLED_SECONDS = 15.0
"""The same once this process has been told to end, and cannot, since it waits. torchrun kills 30 seconds later."""
LEFT = 2**40
"""Added to the count of a rank that has left, which is not waited for any more."""
FAILED = 1


class Heartbeat:
    """Counts for this rank and watches the others inside ``with``, in a thread.

    Args:
        store: of its own, since a call that waits holds a store for all threads.
        last: the last whole checkpoint of the run; None: there is none.
    """

    def __init__(self, store: Store, rank: int, size: int, last: Callable[[], Path | None]) -> None:
        self._store, self._rank, self._last = store, rank, last
        self._others = [each for each in range(size) if each != rank]
        self._ended, self._signalled = threading.Event(), False
        self._read, self._write = os.pipe()
        self._before = -1

    def __enter__(self) -> Self:
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        if threading.current_thread() is threading.main_thread():
            self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(RuntimeError):  # the store is gone with the process that held it
            self._store.add(self._name(self._rank), LEFT)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._before)

    def _watch(self) -> None:
        seen = {rank: (0, time.monotonic()) for rank in self._others}
        looked = time.monotonic()
        try:
            while not self._ended.wait(BEAT_SECONDS):
                self._store.add(self._name(self._rank), 1)
                counts = {rank: self._store.add(self._name(rank), 0) for rank in self._others}
                now = time.monotonic()
                stopped = now - looked > 3 * BEAT_SECONDS  # this process itself, as by Ctrl-Z: all begin anew
                seen = {rank: seen[rank] if seen[rank][0] == count < LEFT and not stopped else (count, now)
                        for rank, count in counts.items()}
                looked = now
                self._give_up({rank: now - since for rank, (_, since) in seen.items()})
        except RuntimeError:  # the store has ended with its process, which the main thread notices by itself
            return

    def _give_up(self, silent: dict[int, float]) -> None:
        """End this process if a rank has been silent for too long."""
        most = SIGNALLED_SECONDS if self._told_to_end() else SILENT_SECONDS
        gone = [rank for rank, seconds in silent.items() if seconds > most]
        if not gone or self._ended.is_set():
            return
        if self._store.add("weft.silent", 1) == 1:
            last = self._last()
            kept = f"the last whole checkpoint is {last}" if last else "no checkpoint had been saved yet"
            print(f"error: rank {self._rank}: rank {', '.join(map(str, gone))} has not answered for {most:.0f} "
                  f"seconds, as a process that is stopped or hangs does; {kept}. End that process, then go on with "
                  "--resume.", file=sys.stderr, flush=True)
        os._exit(FAILED)

    def _told_to_end(self) -> bool:
        """Whether a signal has arrived, also one whose handler cannot run yet."""
        with suppress(BlockingIOError):
            self._signalled = bool(os.read(self._read, 512)) or self._signalled
        return self._signalled

    @staticmethod
    def _name(rank: int) -> str:
        return f"weft.alive.{rank}"
