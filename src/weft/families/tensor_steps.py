"""Invertible steps between the tensors of a file and a model's.

A step maps a list of tensors to a list: `read` from file to model, `write` back. Results are views where possible;
nothing is cast. Steps also work on the meta device, so that shapes are checked before a file is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from torch import Tensor

from weft.ops.rotary import half_split_order, interleaved_order

Order: TypeAlias = Callable[[int, int], list[int]]
"""Computes the order of a head's features from the number of rotary features and the head size."""


class Step(ABC):
    """One invertible step."""

    @abstractmethod
    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """From the file's tensors towards the model's."""

    @abstractmethod
    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The inverse."""


@final
@dataclass(frozen=True)
class Transpose(Step):
    """Every tensor transposed: the file stores [in, out] (Conv1D)."""

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.transpose(0, 1) for tensor in tensors]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self.read(tensors)


@final
@dataclass(frozen=True)
class Fuse(Step):
    """Several tensors, of ``sizes`` rows, concatenated by rows in the model."""

    sizes: tuple[int, ...]

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(tensors))]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors[0].split(self.sizes))


@final
@dataclass(frozen=True)
class Split(Step):
    """Each tensor's rows are several tensors of the model, of ``sizes`` rows: the inverse of `Fuse`."""

    sizes: tuple[int, ...]

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [part for tensor in tensors for part in tensor.split(self.sizes)]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        count = len(self.sizes)
        return [torch.cat(list(tensors[first:first + count])) for first in range(0, len(tensors), count)]


@final
@dataclass(frozen=True)
class Ungroup(Step):
    """Rows that the file keeps group by group, [part 1, part 2, ...] in each, become all of part 1, all of part 2, ...

    ``groups`` times the sum of ``sizes`` rows; ``sizes`` are the rows of each part in one group. GPT-NeoX and BLOOM:
    a group is a head with its q, k and v; Falcon's new architecture: a key/value head with its queries.
    """

    groups: int
    sizes: tuple[int, ...]

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([part.flatten(0, 1) for part in tensor.unflatten(0, (self.groups, -1)).split(self.sizes, 1)])
                for tensor in tensors]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([part.unflatten(0, (self.groups, size)) for part, size in
                           zip(tensor.split([self.groups * size for size in self.sizes]), self.sizes, strict=True)],
                          dim=1).flatten(0, 1) for tensor in tensors]


@final
@dataclass(frozen=True)
class Gated(Step):
    """Queries, keys and values, of which each of the ``heads`` heads of queries has its gate behind it, become one
    matrix of all three and one of the gates. A head has ``d_head`` features, and so has its gate; keys and values have
    ``kv_rows`` rows each."""

    heads: int
    d_head: int
    kv_rows: int

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        q, k, v = tensors
        queries, gates = q.unflatten(0, (self.heads, 2, self.d_head)).unbind(1)
        return [torch.cat([queries.flatten(0, 1), k, v]), gates.flatten(0, 1)]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        q, k, v = tensors[0].split([self.heads * self.d_head, self.kv_rows, self.kv_rows])
        both = torch.stack([each.unflatten(0, (self.heads, self.d_head)) for each in (q, tensors[1])], 1)
        return [both.flatten(0, 2), k, v]


@final
@dataclass(frozen=True)
class RotaryOrder(Step):
    """The features of the first ``heads`` heads of size ``d_head``, half-split in the file, interleaved in the model;
    with ``reverse`` the opposite. Rows after those heads (values) stay in place. ``rot`` features of a head are
    rotary."""

    heads: int
    d_head: int
    rot: int
    reverse: bool = False

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self._reorder(tensors, half_split_order if self.reverse else interleaved_order)

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return self._reorder(tensors, interleaved_order if self.reverse else half_split_order)

    def _reorder(self, tensors: Sequence[Tensor], order: Order) -> list[Tensor]:
        turned = self.heads * self.d_head
        within = torch.tensor(order(self.rot, self.d_head))
        rows = (torch.arange(0, turned, self.d_head)[:, None] + within).flatten()
        return [tensor.index_select(0, torch.cat([rows, torch.arange(turned, tensor.shape[0])]).to(tensor.device))
                for tensor in tensors]


@final
@dataclass(frozen=True)
class Flatten(Step):
    """A tensor [1, n] of the file is a vector [n] of the model."""

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.flatten() for tensor in tensors]

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor[None] for tensor in tensors]


@final
@dataclass(frozen=True)
class Unstack(Step):
    """One tensor [N, ...] is N tensors of the model: experts stored together."""

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return list(tensors[0].unbind())

    def write(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.stack(list(tensors))]


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
