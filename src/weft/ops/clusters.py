"""Maps of ids that differ by cluster: every id goes through the map of the cluster that holds it.

    y_t = map_i(x_t, n_t - first_i),   first_i <= n_t < first_(i+1)

Frequent ids have large maps and rare ids small ones (adaptive embeddings and adaptive softmax), so that the naive form,
which runs every map on every row and selects, computes far more than ``grouped``, which sorts the rows by cluster and
runs each map on its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation

ClusterMap: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From rows x [n,D] and the numbers [n] of their ids in the cluster to results [n,...]."""

FEW_ROWS = 16
"""Rows up to which sorting them costs more than it saves, as for experts. Sorting reads sizes on the host, so a step
that sorts cannot be recorded."""


class ClusterCall(NamedTuple):
    """The arguments of `by_cluster`.

    Attributes:
        x: a row for each id.
        firsts: the first id of each cluster, increasing from 0.
    """

    x: Float[Tensor, "rows D"]
    numbers: Int64[Tensor, " rows"]
    firsts: tuple[int, ...]
    maps: Sequence[ClusterMap]


def by_cluster(x: Float[Tensor, "rows D"], numbers: Int64[Tensor, " rows"], firsts: tuple[int, ...],
               maps: Sequence[ClusterMap]) -> Tensor:
    """The result [rows,...] of each id's own map."""
    return CLUSTERS(ClusterCall(x, numbers, firsts, maps))


def cluster_of(numbers: Int64[Tensor, "*N"], firsts: tuple[int, ...]) -> Int64[Tensor, "*N"]:
    """The cluster of each id, from 0."""
    owner = torch.zeros_like(numbers)
    for first in firsts[1:]:
        owner = owner + (numbers >= first)
    return owner


def _dense(call: ClusterCall) -> Tensor:
    """Every map on all rows; outside of its cluster a map is given its first id, and its result is not taken."""
    x, numbers, firsts, maps = call
    y = maps[0](x, torch.where(numbers < firsts[1], numbers, 0)) if len(firsts) > 1 else maps[0](x, numbers)
    for index, (first, each) in enumerate(zip(firsts[1:], maps[1:], strict=True), 1):
        inside = numbers >= first
        # An id beyond the last cluster is left as it is, so that its map refuses it.
        own = inside if index + 1 == len(firsts) else inside & (numbers < firsts[index + 1])
        result = each(x, torch.where(own, numbers - first, 0))
        y = torch.where(inside.view(-1, *[1] * (result.dim() - 1)), result, y)
    return y


def _grouped(call: ClusterCall) -> Tensor:
    """Each map on the rows of its cluster. The sizes are read on the host, once; every map is called, without rows
    where no id is of its cluster, so that its parameters always get a gradient."""
    x, numbers, firsts, maps = call
    owner = cluster_of(numbers, firsts)
    order = owner.argsort(stable=True)
    # One bin more than there are clusters, which stays empty: the form in which experts' sizes are counted, so that
    # counting operations without data spreads the rows alike.
    sizes = torch.bincount(owner, minlength=len(maps) + 1).tolist()
    places = order.split(sizes)[:-1]
    results = [each(x[own], numbers[own] - first) for each, own, first in zip(maps, places, firsts, strict=True)]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return torch.cat(results)[back]


def _many(call: ClusterCall) -> str | None:
    return None if call.numbers.shape[0] > FEW_ROWS else "sorting a few rows costs more than it saves"


def _examples(make: Make) -> Iterator[ClusterCall]:
    def scaled(table: Tensor) -> ClusterMap:
        return lambda rows, own: rows * table[own]

    def summed(table: Tensor) -> ClusterMap:
        return lambda rows, own: (rows * table[own]).sum(-1)

    for rows, kind in ((1, scaled), (9, scaled), (40, summed), (0, summed)):
        maps = [kind(make(size, 3)) for size in (2, 3, 6)]
        yield ClusterCall(make(rows, 3), torch.arange(rows) * 7 % 11 if rows != 9 else torch.arange(rows) % 5,
                          (0, 2, 5), maps)  # of nine rows none is of the last cluster


CLUSTERS = OPERATIONS.add(Operation(
    "clusters", "maps of ids that differ by cluster",
    Form(REFERENCE, _dense, "every map on every row", known_as=("dense",)),
    Form("grouped", _grouped, "each map on the rows of its cluster", compiled=False, transformed=False, worth=_many),
    subject="x", examples=_examples, known_as=("adaptive", "by_cluster")))
