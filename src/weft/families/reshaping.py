"""The step between tensors of one content and different shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from weft.families.steps import Step


@final
@dataclass(frozen=True)
class Reshape(Step):
    """Each tensor of the file, of shape ``theirs``, has shape ``ours`` in the model: a convolution over patches that
    do not overlap is a linear map, and a table may have a dimension of size 1 before it."""

    theirs: tuple[int, ...]
    ours: tuple[int, ...]

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.reshape(self.ours) for tensor in tensors]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.reshape(self.theirs) for tensor in tensors]
