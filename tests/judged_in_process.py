"""The worker of a judged file without its process, for tests that judge many files: same questions, same answers, no
confinement and no second interpreter. What depends on a process of its own is tested where processes are started."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from weft.judge.questions import CONFINED_BY, FileLimits, Judged, ModelError, Surroundings
from weft.judge.worker import Asked, in_words


class InProcess:
    """Stands for `weft.judge.questions.Worker`."""

    def __init__(self, judged: Judged, limits: FileLimits, world: Surroundings, until: float) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="weft-judge-")
        self.folder, self.by = Path(self._temporary.name), CONFINED_BY
        self._said = {"path": str(judged.path), "call": judged.call, "seed": world.seed, "seed_later": world.seed_later,
                      "clock": world.clock}
        self._asked: Asked | None = None

    def begin(self) -> dict[str, Any]:
        kept = sys.path[:]
        try:
            self._asked = Asked(self._said, SimpleNamespace(offset=0.0))  # type: ignore[arg-type]  # time stays as it is
        except Exception as error:
            raise ModelError(in_words(error)) from error
        finally:
            sys.path[:] = kept
            sys.modules.pop("judged", None)
        return json.loads(json.dumps(self._asked.about()))  # type: ignore[no-any-return]

    def ask(self, question: str, *arrays: np.ndarray, seconds: float | None = None, **said: Any
            ) -> tuple[dict[str, Any], list[np.ndarray]]:
        if self._asked is None:
            self.begin()
        assert self._asked is not None
        try:
            message, found = self._asked.answer(question, said, [array.copy() for array in arrays])
        except Exception as error:
            raise ModelError(in_words(error)) from error
        return json.loads(json.dumps(message)), [np.array(array) for array in found]

    def end(self) -> None:
        self._temporary.cleanup()
