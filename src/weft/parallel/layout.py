"""Where the part of a tensor that a process holds lies in the whole tensor.

A tensor may be divided along one dimension by tensor parallelism, in stretches (queries, keys, values) of which each
process has an equal part, and along its first dimension once more by FSDP2. What a process holds is then a list of
boxes of the whole tensor. Checkpoints are written and read by these boxes, so that any mesh can read what any other has
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.checkpoints.sharded import Boxes, TensorBox
from weft.linear.linear import DividedDimension
from weft.parallel.mesh import Mesh

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class EntryRange(NamedTuple):
    """A stretch of ``length`` entries along the divided dimension: where it begins in the whole tensor, and in the
    local one."""

    whole: int
    local: int
    length: int


class Layout(NamedTuple):
    """How tensor parallelism divides a tensor.

    Attributes:
        dim: along which it is divided; the whole tensor is one run where it is not.
    """

    shape: tuple[int, ...]
    dim: int
    runs: tuple[EntryRange, ...]

    @staticmethod
    def whole(shape: Sequence[int]) -> Layout:
        """The layout of a tensor that every process has."""
        return Layout(tuple(shape), 0, (EntryRange(0, 0, shape[0]),) if shape else ())

    @staticmethod
    def divided(shape: Sequence[int], along: DividedDimension, place: int, parts: int) -> Layout:
        """The layout of a tensor whose stretches are divided each into ``parts`` equal parts."""
        runs, whole, local = [], 0, 0
        for section in along.sections:
            each = section // parts
            runs.append(EntryRange(whole + place * each, local, each))
            whole, local = whole + section, local + each
        return Layout(tuple(shape), along.dim, tuple(runs))

    def part(self, tensor: Tensor) -> Tensor:
        """This process's part of the whole tensor, as a tensor of its own."""
        return torch.cat([tensor.narrow(self.dim, run.whole, run.length) for run in self.runs], self.dim).contiguous()


def as_sharded(tensor: Tensor) -> DTensor | None:
    """The tensor as torch's DTensor, where FSDP2 has sharded it; None where it has not."""
    if type(tensor) in (Tensor, nn.Parameter):
        return None
    from torch.distributed.tensor import DTensor  # which takes a second, and plain tensors do not need

    return tensor if isinstance(tensor, DTensor) else None


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor on this process, where FSDP2 may have sharded it."""
    sharded = as_sharded(tensor)
    return tensor if sharded is None else sharded.to_local()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that FSDP2 may have sharded, on every process; all that share it must call this."""
    sharded = as_sharded(tensor)
    return tensor if sharded is None else sharded.full_tensor()


def as_held(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's part of a tensor that every process has whole, sharded as another of its shape."""
    sharded = as_sharded(like)
    if sharded is None:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, sharded.device_mesh, sharded.placements, src_data_rank=None)


def boxes(tensor: Tensor, layout: Layout) -> Boxes:
    """The boxes of the whole tensor that this process holds, without empty ones.

    Args:
        tensor: as this process holds it, perhaps sharded along its first dimension.
        layout: of the tensor before it was sharded.
    """
    held = local(tensor.detach())
    found = tuple(box for box in _boxes(held, _first_row(tensor), layout) if box.tensor.numel())
    return Boxes(tensor.dtype, layout.shape, found if layout.shape else (TensorBox((), held),))


def _boxes(held: Tensor, start: int, layout: Layout) -> Iterator[TensorBox]:
    """The box of each run; ``held`` begins at the row ``start`` of what tensor parallelism gives this process."""
    for run in layout.runs:
        offsets = [0 if layout.dim == 0 else start, *[0] * (held.dim() - 1)]
        if layout.dim == 0:
            begin, end = max(run.local, start), min(run.local + run.length, start + held.shape[0])
            offsets[0] = run.whole + begin - run.local
            yield TensorBox(tuple(offsets), held[begin - start : max(begin, end) - start])
        else:
            offsets[layout.dim] = run.whole
            yield TensorBox(tuple(offsets), held.narrow(layout.dim, run.local, run.length))


def _first_row(tensor: Tensor) -> int:
    """The first row of a tensor that this process holds."""
    sharded = as_sharded(tensor)
    if sharded is None:
        return 0
    assert all(place.is_replicate() or place.is_shard(0) for place in sharded.placements), "as FSDP2 shards"
    begin, rows, mesh = 0, sharded.shape[0], sharded.device_mesh
    for axis, place in enumerate(sharded.placements):
        if place.is_shard():  # in equal parts, rounded up, of which the last may be shorter or empty
            begin = min(rows, mesh.get_local_rank(axis) * -(-rows // mesh.size(axis)))
    return begin


def global_norm(parameters: Iterable[tuple[str, nn.Parameter]], layouts: Mapping[str, Layout], mesh: Mesh) -> float:
    """The L2 norm of the gradients of the whole model, each entry counted once. All processes must call it.

    Args:
        parameters: with their names, as this process has them, after their gradients have been added.
        layouts: of those that tensor parallelism divides.
    """
    total = torch.zeros((), dtype=torch.float64)
    for name, parameter in parameters:
        if parameter.grad is not None:
            divided = (mesh.size("tensor") if name in layouts else 1) * (
                1 if as_sharded(parameter) is None else mesh.size("shard"))
            holders = mesh.settings.processes // divided  # processes that hold each of its entries
            total += float(torch.linalg.vector_norm(local(parameter.grad))) ** 2 / holders
    if mesh.devices is not None:
        dist.all_reduce(total)
    return float(total.sqrt())


@torch.no_grad()
def clip(parameters: Iterable[Tensor], norm: float, limit: float | None) -> None:
    """Scale gradients of this norm so that it is at most ``limit``, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
    for parameter in parameters if factor < 1 else ():
        if parameter.grad is not None:
            local(parameter.grad).mul_(factor)
