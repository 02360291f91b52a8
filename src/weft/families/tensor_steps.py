"""Invertible steps between the tensors of a file and a model's.

A step maps a list of tensors to a list: `read` from file to model, `write` back. Results are views where possible;
nothing is cast. Steps also work on the meta device, so that shapes are checked before a file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.ops.rotary import half_split_order, interleaved_order


class Step(NamedTuple):
    """One invertible step.

    Attributes:
        read: from the file's tensors towards the model's.
        write: the inverse.
    """

    read: Callable[[Sequence[Tensor]], list[Tensor]]
    write: Callable[[Sequence[Tensor]], list[Tensor]]


def one_by_one(read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Step:
    """The step that does the same with every tensor."""
    return Step(lambda tensors: [read(tensor) for tensor in tensors],
                lambda tensors: [write(tensor) for tensor in tensors])


TRANSPOSE = one_by_one(lambda tensor: tensor.transpose(0, 1), lambda tensor: tensor.transpose(0, 1))
"""Every tensor transposed: the file stores [in, out] (Conv1D)."""
FLATTEN = one_by_one(lambda tensor: tensor.flatten(), lambda tensor: tensor[None])
"""A tensor [1, n] of the file is a vector [n] of the model."""
UNSTACK = Step(lambda tensors: list(tensors[0].unbind()), lambda tensors: [torch.stack(list(tensors))])
"""One tensor [N, ...] is N tensors of the model: experts stored together."""


def fuse(sizes: tuple[int, ...]) -> Step:
    """Several tensors, of ``sizes`` rows, concatenated by rows in the model."""
    return Step(lambda tensors: [torch.cat(list(tensors))], lambda tensors: list(tensors[0].split(sizes)))


def split(sizes: tuple[int, ...]) -> Step:
    """Each tensor's rows are several tensors of the model, of ``sizes`` rows: the inverse of `fuse`."""
    count = len(sizes)
    return Step(lambda tensors: [part for tensor in tensors for part in tensor.split(sizes)],
                lambda tensors: [torch.cat(list(tensors[first:first + count]))
                                 for first in range(0, len(tensors), count)])


def ungroup(groups: int, sizes: tuple[int, ...]) -> Step:
    """Rows that the file keeps group by group, [part 1, part 2, ...] in each, become all of part 1, all of part 2, ...

    ``groups`` times the sum of ``sizes`` rows; ``sizes`` are the rows of each part in one group. GPT-NeoX and BLOOM:
    a group is a head with its q, k and v; Falcon's new architecture: a key/value head with its queries.
    """
    def read(tensor: Tensor) -> Tensor:
        return torch.cat([part.flatten(0, 1) for part in tensor.unflatten(0, (groups, -1)).split(sizes, 1)])

    def write(tensor: Tensor) -> Tensor:
        parts = zip(tensor.split([groups * size for size in sizes]), sizes, strict=True)
        return torch.cat([part.unflatten(0, (groups, size)) for part, size in parts], dim=1).flatten(0, 1)

    return one_by_one(read, write)


def gates_apart(heads: int, d_head: int, kv_rows: int) -> Step:
    """Queries, keys and values, of which each of the ``heads`` heads of queries has its gate behind it, become one
    matrix of all three and one of the gates. A head has ``d_head`` features, and so has its gate; keys and values have
    ``kv_rows`` rows each."""
    def read(tensors: Sequence[Tensor]) -> list[Tensor]:
        q, k, v = tensors
        queries, gates = q.unflatten(0, (heads, 2, d_head)).unbind(1)
        return [torch.cat([queries.flatten(0, 1), k, v]), gates.flatten(0, 1)]

    def write(tensors: Sequence[Tensor]) -> list[Tensor]:
        q, k, v = tensors[0].split([heads * d_head, kv_rows, kv_rows])
        both = torch.stack([rows.unflatten(0, (heads, d_head)) for rows in (q, tensors[1])], 1)
        return [both.flatten(0, 2), k, v]

    return Step(read, write)


def rotary_order(heads: int, d_head: int, rot: int, reverse: bool = False) -> Step:
    """The features of the first ``heads`` heads of size ``d_head``, half-split in the file, interleaved in the model;
    with ``reverse`` the opposite. Rows after those heads (values) stay in place. ``rot`` features of a head are
    rotary."""
    def reordered(tensor: Tensor, order: list[int]) -> Tensor:
        turned = heads * d_head
        rows = (torch.arange(0, turned, d_head)[:, None] + torch.tensor(order)).flatten()
        return tensor.index_select(0, torch.cat([rows, torch.arange(turned, tensor.shape[0])]).to(tensor.device))

    orders = interleaved_order(rot, d_head), half_split_order(rot, d_head)
    read, write = orders[::-1] if reverse else orders
    return one_by_one(lambda tensor: reordered(tensor, read), lambda tensor: reordered(tensor, write))


def reshape(theirs: tuple[int, ...], ours: tuple[int, ...]) -> Step:
    """Each tensor of the file, of shape ``theirs``, has shape ``ours`` in the model: a convolution over patches that
    do not overlap is a linear map, and a table may have a dimension of size 1 before it."""
    return one_by_one(lambda tensor: tensor.reshape(ours), lambda tensor: tensor.reshape(theirs))
