"""Numbers that a configuration fixes (frequencies, slopes), kept exact for any dtype of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from weft.core.declarations import Declared
from weft.core.layer import Part

Numbers = Sequence[float] | Sequence[Sequence[float]]


def angle_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which angles and distances for ``x`` are computed: float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Constant(Part):
    """A fixed tensor that follows the model's device and not its dtype, and is not saved with the weights.

    A buffer alone would be rounded by ``model.to(torch.bfloat16)`` and would be uninitialised after ``to_empty``;
    this one is written again from its Python numbers whenever the model is moved or cast.
    """

    numbers: Tensor

    def __init__(self, values: Numbers) -> None:
        super().__init__()
        self.values = values
        self._key = tuple(tuple(row) if isinstance(row, Sequence) else row for row in values)
        self.register_buffer("numbers", torch.tensor(values, dtype=torch.float32), persistent=False)

    def at(self, dtype: torch.dtype) -> Tensor:
        """The numbers in float32, or correctly rounded in another dtype."""
        if dtype == torch.float32:
            return self.numbers
        return torch.tensor(self.values, dtype=dtype, device=self.numbers.device)

    def key(self) -> tuple[Any, ...]:
        """A hashable key, equal for equal numbers."""
        return self._key

    def declares(self) -> Declared:
        return Declared(same_dtype=(self.numbers,))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.numbers = torch.tensor(self.values, dtype=torch.float32, device=self.numbers.device)
        return self
