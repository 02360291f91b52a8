"""The choices of experts in a run of a subject, and where those of two runs differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from weft.core.layer import Choice, Chooser


@final
class Choices:
    """The choices of every `Chooser` in a module, by its path, for all tokens of a row."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Choice]] = {}

    def add(self, place: str, choice: Choice) -> None:
        """Append the choices of the layer at ``place`` for the next tokens."""
        self._pieces.setdefault(place, []).append(choice)

    def of(self, place: str) -> Choice:
        """The choices of the layer at ``place`` for all tokens."""
        pieces = self._pieces[place]
        chosen, margin = ([piece[field] for piece in pieces] for field in (0, 1))
        return Choice(torch.cat(chosen, 1), torch.cat(margin, 1))

    def against(self, other: Choices, steps: int, *, causal: bool) -> tuple[Bool[Tensor, "B T"], float]:
        """The tokens that no different choice affects, [B,T], and the widest margin, in this run, of a choice that
        differs.

        Only the first different choice of a row counts for the margin, because later ones have different inputs.

        Args:
            other: the choices of the run to compare with.
            steps: T, of the outputs.
            causal: whether a choice affects its own and later tokens; otherwise it affects its whole row.
        """
        agreed, margin = None, 0.0
        for place in self._pieces:
            mine, theirs = self.of(place), other.of(place)
            differs = (mine.chosen.sort(-1).values != theirs.chosen.sort(-1).values).any(-1)
            along = causal and differs.shape[1] == steps
            touched = differs.cumsum(1) > 0 if along else differs.any(1, keepdim=True).expand(-1, steps)
            before = torch.ones_like(touched) if agreed is None else agreed
            # After a different choice in an earlier layer the inputs differ, so these choices do not count.
            judged = differs & (before if along else before.all(1, keepdim=True))
            if bool(judged.any()):
                first = judged & (judged.cumsum(1) == 1)
                margin = max(margin, float(mine.margin[first].max()))
            agreed = before & ~touched
        assert agreed is not None, "a subject with the trait holds a layer that chooses, and it ran"
        return agreed, margin


@contextmanager
def recorded(module: nn.Module) -> Iterator[Choices]:
    """Record the choices of the layers of ``module`` while the block runs, in the order of the calls."""
    choices = Choices()
    handles = [_record(place, part, choices) for place, part in module.named_modules() if isinstance(part, Chooser)]
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


def _record(place: str, part: Chooser, choices: Choices) -> torch.utils.hooks.RemovableHandle:
    def append(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].shape[1]:
            choices.add(place, part.choose(inputs[0]))

    return part.register_forward_pre_hook(append)
