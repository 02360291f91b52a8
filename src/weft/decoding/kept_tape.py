"""A verified tape that is kept with its model between texts.

Recording a step and building its tape takes as long as some five steps. A tape depends on the model, the shapes of the
state, and a few settings of the process; where the next text has these in common with the last one, its steps go on by
the same tape after its state has been copied into the tape's tensors. The first of them is compared with an ordinary
step, as that of a new tape is.

A tape has one owner: a session takes it from its model and gives it back, so sessions that run at once, in one thread
or in several, never share its tensors. It is no part of the model: copies, pickles and checkpoints are without it.
Between texts it holds the tensors of one state, at most `MOST_BYTES`, and the vectors of one step; and of a model whose
parameters are replaced, the old ones until the model decodes again.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from threading import Lock
from typing import Any, final
from weakref import ref

import torch
from torch import nn

from weft.decoding.step_tape import StepTape
from weft.ops.forms import OPERATIONS

NAME = "_kept_tape"
"""The attribute of a model that holds its tape."""
MOST_BYTES = 64 << 20
"""The largest state that stays in memory between texts."""


@final
class KeptTape:
    """The place for a model's tape. A copy of it, such as that in the copy of a model, is empty.

    Args:
        model: whose place it is; a shallow copy of a model has the same object, and needs a place of its own.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = None if model is None else ref(model)
        self._kept: tuple[StepTape, TapeConditions] | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[KeptTape], tuple[()]]:
        return KeptTape, ()

    def belongs_to(self, model: nn.Module) -> bool:
        """Return whether it is the place of this model."""
        return self._model is not None and self._model() is model

    def take(self, model: nn.Module, fits: Callable[[StepTape], bool]) -> tuple[StepTape, TapeConditions] | None:
        """Return the tape with the surroundings that it was recorded in, and keep it no longer; None if there is none
        that fits and whose surroundings are those of now. One that has become invalid is dropped."""
        with self._lock:
            kept = self._kept
            if kept is None or not fits(kept[0]):
                return None
            self._kept = None
        tape, surroundings = kept
        return kept if surroundings == TapeConditions(model) and tape.is_whole() else None

    def put(self, tape: StepTape, surroundings: TapeConditions) -> None:
        """Keep a tape in place of the last one, if its state is no larger than `MOST_BYTES`."""
        if tape.nbytes() <= MOST_BYTES:
            with self._lock:
                self._kept = tape, surroundings


def kept_tape(model: nn.Module) -> KeptTape:
    """Return the place for the tape of a model."""
    found = vars(model).get(NAME)
    if not isinstance(found, KeptTape) or not found.belongs_to(model):
        found = vars(model)[NAME] = KeptTape(model)
    return found


@final
class TapeConditions:
    """The objects and settings that decide which operations a step consists of: every attribute of the model's modules,
    among them parameters, buffers and parts, each as the object that it is, and settings of the process. What changes
    inside of an object that is neither a dictionary nor a list is not seen."""

    def __init__(self, model: nn.Module) -> None:
        self._objects = list[Any]()
        for module in model.modules():
            self._objects.append(module)
            for name, value in vars(module).items():
                if name != NAME:
                    self._objects += (name, value)
                    if isinstance(value, dict):
                        self._objects += (*value, *value.values())
                    elif isinstance(value, list):
                        self._objects += value
        forced = OPERATIONS.forced_now()
        self._objects += (*forced, *forced.values())
        self._settings = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu"),
                          torch.get_autocast_dtype("cpu"), torch.are_deterministic_algorithms_enabled(),
                          torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, TapeConditions) and self._settings == other._settings
                and len(self._objects) == len(other._objects) and all(map(is_, self._objects, other._objects)))

    __hash__ = None  # type: ignore[assignment]
