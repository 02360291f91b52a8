"""The loss of tasks that predict tokens: cross-entropy with label smoothing and a z-loss, summed over scored tokens."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from weft.core.model import Readout
from weft.core.part_config import Settings
from weft.ops.linear_cross_entropy import CrossEntropy

PIECE_TOKENS = 512
"""Tokens whose logits are in memory at a time, for a readout that is not linear; they are computed again in the
backward pass."""


class ObjectiveSettings(Settings):
    """Terms of the loss that is minimised. The reported loss is always the plain negative log-likelihood.

    Attributes:
        label_smoothing: share of the target distribution that is uniform over the vocabulary (Szegedy et al. 2016,
            section 7).
        z_loss: weight of (log Z)^2, which keeps logits from drifting (Chowdhery et al. 2022, section 5, uses 1e-4).
    """

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    z_loss: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def plain(self) -> bool:
        """Whether the loss is the negative log-likelihood alone."""
        return self.label_smoothing == 0 and self.z_loss == 0


def cross_entropy(readout: Readout, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"],
                  scored: Bool[Tensor, "B T"], settings: ObjectiveSettings) -> CrossEntropy:
    """The sums over ``scored`` tokens of the negative log-likelihood and of what ``settings`` minimise.

    A readout may compute both itself (`Readout.cross_entropy`). Otherwise they follow from its log-probabilities, or,
    where log Z or all classes are needed, from its logits, computed for a piece of the tokens at a time.
    """
    readout, h = readout.inner(h)
    fused = readout.cross_entropy(h, targets, scored, smoothing=settings.label_smoothing, z_loss=settings.z_loss)
    if fused is not None:
        return CrossEntropy(*fused)
    if settings.plain:
        nats = -torch.where(scored, readout.log_prob(h, targets), 0.0)
        return CrossEntropy(nats.sum().detach(), nats.sum(), nats.detach().sum(-1))
    step = max(1, PIECE_TOKENS // h.shape[0])
    pieces = zip(*(x.split(step, dim=1) for x in (h, targets, scored)), strict=True)
    sums = [checkpoint(_piece, readout, *piece, settings, use_reentrant=False) for piece in pieces]
    by_row, loss = (torch.stack(terms).sum(0) for terms in zip(*sums, strict=True))
    return CrossEntropy(by_row.sum().detach(), loss, by_row.detach())


def _piece(readout: Readout, h: Tensor, targets: Tensor, scored: Tensor,
           settings: ObjectiveSettings) -> tuple[Tensor, Tensor]:
    """The nats of each row of a piece, and the sum of the loss, from its logits."""
    z = readout.logits(h)
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    log_z = z.logsumexp(-1)
    nats = log_z - z.gather(-1, targets[..., None])[..., 0]
    share = settings.label_smoothing
    loss = (1 - share) * nats + share * (log_z - z.mean(-1)) + settings.z_loss * log_z.square()
    return torch.where(scored, nats, 0.0).sum(-1), torch.where(scored, loss, 0.0).sum()
