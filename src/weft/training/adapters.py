"""Adapters in training: one that no gradient reaches is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import final

from torch import nn

from weft.core.errors import TrainingError
from weft.core.layer import Part
from weft.linear.low_rank import Adapted, adapted_maps

STEPS = 2
"""Steps in which an adapter must have had a gradient: behind a matrix that starts at zero there is none in the first.
"""


@final
class AdapterCheck:
    """Which adapters of a model have not had a gradient yet. Experts are counted together, since none may have been
    routed to some of them."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        experts = [path for path, part in model.named_modules()
                   if isinstance(part, Part) and part.declares().idle_parameters]
        self._idle: dict[str, list[Adapted]] = {}
        self._last = min(STEPS, steps) - 1
        for path, module in adapted_maps(model).items():
            self._idle.setdefault(_together(path, experts), []).append(module)

    def after(self, step: int) -> None:
        """Look at the gradients of a step, from 0. Raises `TrainingError`: in the first steps of a run some adapters
        have had no gradient, or only zeros."""
        if step > self._last or not self._idle:
            return
        self._idle = {path: group for path, group in self._idle.items() if not any(map(_reached, group))}
        if step == self._last and self._idle:
            raise TrainingError(_message(self._idle, step + 1), where="model.rewrites",
                                remedy="Leave them out of the rewrite's maps: what they compute does not reach the "
                                       "loss, or with weights of zero.")


def _message(idle: Mapping[str, list[Adapted]], steps: int) -> str:
    names = list(idle)
    listed = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    return f"after {steps} step{'s' if steps > 1 else ''} these adapters have no gradient: {listed}."


def _reached(module: Adapted) -> bool:
    return any(p.grad is not None and bool((p.grad != 0).any()) for p in module.trained())


def _together(path: str, experts: list[str]) -> str:
    """The path; inside experts with ``*`` for numbers."""
    holder = next((each for each in experts if path.startswith(f"{each}.")), None)
    return path if holder is None else holder + re.sub(r"(?<=\.)\d+(?=\.)", "*", path.removeprefix(holder))
