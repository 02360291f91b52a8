"""The token embedding and the linear readout with the vocabulary divided among processes.

Each process has the rows [first, first + n) of the table. A row is looked up where it is, and added over processes; the
softmax needs its largest logit and its sum over processes, which are two numbers a token (Shoeybi et al. 2019, section
3):

    m = max z_v,   log Z = m + log sum over processes of sum_v exp(z_v - m),   log p(y) = z_y - log Z
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.model import Readout
from weft.heads.readout import LinearReadout, mapped
from weft.ops.linear_cross_entropy import CrossEntropy
from weft.ops.linear_log_prob import capped
from weft.parallel.maps import entering, largest, summed

PIECE_ENTRIES = 1 << 22
"""Logits of this process held at once; they are computed again in the backward pass."""


class OwnIds(NamedTuple):
    """The ids of one process: the first, and ``held`` of them, of ``size``."""

    first: int
    held: int
    size: int

    @staticmethod
    def of(size: int, place: int, parts: int) -> OwnIds:
        """Equal parts, of which the first ones have a row more where the size does not divide."""
        each, more = divmod(size, parts)
        return OwnIds(place * each + min(place, more), each + (place < more), size)

    def found(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which ids are here, and their rows, 0 for the others."""
        here = (ids >= self.first) & (ids < self.first + self.held)
        return here, torch.where(here, ids - self.first, 0)


class DividedEmbedding(Part):
    """Rows of a table [V,E] of which this process has some; ids [...], y [...,E].

    Args:
        weight: its rows.
        group: name of the processes that have the others.
    """

    def __init__(self, weight: nn.Parameter, rows: OwnIds, group: str) -> None:
        super().__init__()
        self.weight, self.rows, self.group = weight, rows, group
        self.embedding_dim = weight.shape[1]

    def declares(self) -> Declared:
        return Declared(holds_table=True)

    def forward(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... E"]:
        here, places = self.rows.found(ids)
        return summed(torch.where(here[..., None], F.embedding(places, self.weight), 0.0), self.group)


class DividedReadout(Readout):
    """`LinearReadout` of which this process has the rows of some ids, and the same bias.

    Args:
        weight: this process's rows, the embedding's where the two are tied.
        group: name of the processes that have the others.
    """

    def __init__(self, readout: LinearReadout, weight: nn.Parameter, rows: OwnIds, group: str) -> None:
        super().__init__()
        self.softcap, self.scale, self.projection = readout.softcap, readout.scale, readout.projection
        self.weight, self.rows, self.group = weight, rows, group
        own = slice(rows.first, rows.first + rows.held)
        self.bias = None if readout.bias is None else nn.Parameter(
            readout.bias.detach()[own].clone(), requires_grad=readout.bias.requires_grad)

    def logits(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        rows, own = self.rows, self._own(self._entered(h))
        # Every process has zeros for the ids of the others, so that the sum puts the parts side by side.
        return summed(F.pad(own, (rows.first, rows.size - rows.first - rows.held)), self.group)

    def log_prob(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        log_z, z_y, _ = self._sums(h, targets)
        return z_y - log_z

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """The sums of `weft.ops.linear_cross_entropy`."""
        log_z, z_y, mean = self._sums(h, targets)
        nats = log_z - z_y
        own = (1 - smoothing) * nats + smoothing * (log_z - mean) + z_loss * log_z.square()
        return CrossEntropy(torch.where(scored, nats, 0.0).sum().detach(), torch.where(scored, own, 0.0).sum())

    def _entered(self, h: Tensor) -> Tensor:
        return entering(mapped(h, self.projection, self.scale), self.group)

    def _own(self, h: Tensor) -> Tensor:
        return capped(F.linear(h, self.weight, self.bias), self.softcap)

    def _sums(self, h: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For every token log Z, the logit of its target and the mean logit, in float32 or better."""
        step = max(1, PIECE_ENTRIES // max(1, self.rows.held))
        pieces = zip(self._entered(h).flatten(0, 1).split(step), targets.flatten().split(step), strict=True)
        found = [checkpoint(self._piece, *piece, use_reentrant=False) if torch.is_grad_enabled() else
                 self._piece(*piece) for piece in pieces]
        log_z, z_y, mean = (torch.cat(each).view_as(targets) for each in zip(*found, strict=True))
        return log_z, z_y, mean

    def _piece(self, h: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self._own(h)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        top = largest(z.amax(-1), self.group)
        here, places = self.rows.found(targets)
        own = torch.stack([(z - top[:, None]).exp().sum(-1),
                           torch.where(here, z.gather(1, places[:, None])[:, 0], 0.0), z.sum(-1)])
        total, z_y, sum_z = summed(own, self.group).unbind(0)
        return top + total.log(), z_y, sum_z / self.rows.size
