"""Tensors between the ranks of a data-parallel run: gradients summed, weights broadcast, carried rows gathered.

torch's DistributedDataParallel is not used. It averages the gradients over ranks; it wraps the module that computes,
which for bfloat16 is a copy (see `weft.training.precision`), so that it would sum in bfloat16; and its hooks cut a
compiled pass into pieces. Summing flat buckets of the float32 gradients once, after the last backward pass of a step,
leaves the pass untouched; the price is that communication does not overlap with it.

All ranks must call each of these functions, in the same order; in a world of one they do nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.parallel.layout import as_sharded, local
from weft.parallel.mesh import Axis
from weft.training.parallel import World

BUCKET = 2**24
"""Entries that are summed in one call, so that the flat copy of the gradients stays small."""


@torch.no_grad()
def sum_gradients(world: World, model: nn.Module, summed: Collection[str] = ()) -> None:
    """Give every parameter the sum of its gradients over the ranks that have computed parts of it; one without a
    gradient on any rank keeps none. Gradients of sharded parameters have been added where they were sharded.

    Args:
        summed: names of parameters that the ranks of the axis ``tensor`` share and use each for its own heads.
    """
    if world.size == 1:
        return
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    for axes in dict.fromkeys(_axes(name, weight, summed) for name, weight in trained):
        groups = [group for axis in axes if (group := world.mesh.group(axis)) is not None]
        for bucket in _buckets([weight for name, weight in trained if _axes(name, weight, summed) == axes]
                               ) if groups else ():
            _sum_bucket(world, bucket, groups)


def _axes(name: str, weight: Tensor, summed: Collection[str]) -> tuple[Axis, ...]:
    """The axes of the mesh whose ranks have computed different parts of a parameter's gradient."""
    rows: tuple[Axis, ...] = ("shard", "replicate", "context") if as_sharded(weight) is None else ("context",)
    return (*rows, "tensor") if name in summed else rows


def _sum_bucket(world: World, bucket: list[nn.Parameter], groups: list[dist.ProcessGroup]) -> None:
    present = [0.0 if weight.grad is None else 1.0 for weight in bucket]
    pieces = [_flat(local(torch.zeros_like(weight) if weight.grad is None else weight.grad)) for weight in bucket]
    # How many ranks have each gradient is summed in the same call, behind the gradients themselves.
    flat = torch.cat([*pieces, pieces[0].new_tensor(present)])
    with world.communicating():
        for group in groups:
            dist.all_reduce(flat, group=group)
    *sums, present_sums = flat.split([*(piece.numel() for piece in pieces), len(bucket)])
    for weight, piece, ranks in zip(bucket, sums, present_sums.tolist(), strict=True):
        if weight.grad is not None and as_sharded(weight.grad) is not None:
            local(weight.grad).copy_(_shaped(piece, local(weight)))
        else:
            assert not ranks or as_sharded(weight) is None, "ranks that shard a parameter use it alike"
            weight.grad = _shaped(piece, weight) if ranks else None


@torch.no_grad()
def broadcast(world: World, tensors: Sequence[Tensor]) -> None:
    """Overwrite the tensors of all ranks with those of rank 0."""
    for tensor in tensors if world.size > 1 else ():
        whole = tensor.detach().contiguous()
        with world.communicating():
            dist.broadcast(_bytes(whole), src=0)
        if whole.data_ptr() != tensor.data_ptr():
            tensor.copy_(whole)


def broadcast_named(world: World, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The named tensors of rank 0, on the CPU of all ranks; those of the other ranks are ignored."""
    if world.size == 1:
        return dict(tensors)
    shapes = world.lead(lambda: [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                                 for name, tensor in tensors.items()])
    received = {name: tensors[name].cpu().contiguous() if world.leads else
                torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in shapes}
    broadcast(world, list(received.values()))
    return received


def gather_rows(world: World, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of all ranks, in order, of tensors whose first dimension is the batch; once, where ranks share rows."""
    if world.size == 1:
        return dict(tensors)
    gathered, alike = {}, world.size // world.mesh.data_size  # ranks that share rows follow one another
    for name, tensor in tensors.items():
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(world.size)]
        with world.communicating():
            dist.all_gather([_bytes(part) for part in parts], _bytes(tensor.contiguous()))
        gathered[name] = torch.cat(parts[::alike])
    return gathered


def _buckets(weights: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in order, in lists of one dtype and limited size."""
    bucket: list[nn.Parameter] = []
    for weight in weights:
        if bucket and (weight.dtype != bucket[0].dtype or sum(map(torch.numel, [*bucket, weight])) > BUCKET):
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


def _flat(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.contiguous()) if tensor.is_complex() else tensor).reshape(-1)


def _shaped(flat: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(flat.view(*like.shape, 2)) if like.is_complex() else flat.view(like.shape)


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, which the backends can send whatever its dtype."""
    return tensor.reshape(-1).view(torch.uint8)
