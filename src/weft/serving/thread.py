"""The thread that steps an engine: it sleeps while there is nothing to do, and ends by draining or at once."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import final

from weft.serving.engine import Engine

LOOK = 0.5
"""Seconds between two signs of life (`Figures.alive_at`) while there is nothing to do."""
GLANCE = 0.02
"""Seconds between two looks of `EngineThread.drain`."""


@final
class EngineThread:
    """A thread in which an engine is stepped.

    Attributes:
        error: what ended the thread, if it was not `stop`; None otherwise. The engine is closed then.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._ending = engine, Event()
        self.error: BaseException | None = None
        self._thread = Thread(target=self._run, name="weft-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start to step. Call it once."""
        self._thread.start()

    def drain(self, seconds: float) -> bool:
        """Take no more requests, and wait for those that are there; returns whether all of them have ended."""
        self._engine.refuse_more()
        until = time.monotonic() + seconds
        while (figures := self._engine.figures()).running or figures.waiting:
            if time.monotonic() >= until or not self.alive:
                return False
            time.sleep(min(GLANCE, seconds))
        return True

    def stop(self) -> None:
        """End the thread after its present step. Requests that are left fail with `StoppedError`."""
        self._ending.set()
        self._engine.wake()
        if self.alive:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                if not self._engine.step():
                    self._engine.wait(LOOK)
        except BaseException as error:
            self.error = error
        finally:
            self._engine.close()
