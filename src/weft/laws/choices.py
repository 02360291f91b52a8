"""What the layers of a subject choose while it runs, and where two runs chose differently."""

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
    """The choices of every `Chooser` in a module, by its place, each over the whole of the row."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Choice]] = {}

    def add(self, place: str, choice: Choice) -> None:
        """Add what the layer at ``place`` chose for the tokens that follow those before."""
        self._pieces.setdefault(place, []).append(choice)

    def of(self, place: str) -> Choice:
        """What the layer at ``place`` chose for all tokens."""
        pieces = self._pieces[place]
        chosen, margin = ([piece[field] for piece in pieces] for field in (0, 1))
        return Choice(torch.cat(chosen, 1), torch.cat(margin, 1))

    def against(self, other: Choices, steps: int, *, causal: bool) -> tuple[Bool[Tensor, "B T"], float]:
        """Tokens that no different choice has touched, and the widest margin, here, of a choice that differs.

        Only the first choice of a row that differs is judged: what comes behind it has other inputs.

        Args:
            other: of the run to compare with.
            steps: T, of the output.
            causal: whether a token is touched by choices at its place or before; otherwise by any in its row.
        """
        agreed, margin = None, 0.0
        for place in self._pieces:
            mine, theirs = self.of(place), other.of(place)
            differs = (mine.chosen.sort(-1).values != theirs.chosen.sort(-1).values).any(-1)
            along = causal and differs.shape[1] == steps
            touched = differs.cumsum(1) > 0 if along else differs.any(1, keepdim=True).expand(-1, steps)
            before = torch.ones_like(touched) if agreed is None else agreed
            # A layer behind another's different choice reads other inputs, so its own choices there are not judged.
            judged = differs & (before if along else before.all(1, keepdim=True))
            if bool(judged.any()):
                first = judged & (judged.cumsum(1) == 1)
                margin = max(margin, float(mine.margin[first].max()))
            agreed = before & ~touched
        assert agreed is not None, "a subject with the trait holds a layer that chooses, and it ran"
        return agreed, margin


@contextmanager
def watched(module: nn.Module) -> Iterator[Choices]:
    """Collect what the layers of ``module`` choose, in the order in which they run, while the block runs."""
    choices = Choices()
    handles = [_watch(place, part, choices) for place, part in module.named_modules() if isinstance(part, Chooser)]
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


def _watch(place: str, part: Chooser, choices: Choices) -> torch.utils.hooks.RemovableHandle:
    def note(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].shape[1]:
            choices.add(place, part.choose(inputs[0]))

    return part.register_forward_pre_hook(note)
