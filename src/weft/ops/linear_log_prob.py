"""Log-probabilities of targets under a linear readout, without holding logits of every token.

    log p(y | h) = z_y - logsumexp(z),   z = softcap(W h + b)
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from weft.ops.operator import transformed

CHUNK_ENTRIES = 1 << 22
"""Logits held at once. Above it tokens go in pieces, and the pieces are computed again in the backward pass."""


def linear_logits(h: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """[...,V]: the readout's logits."""
    z = F.linear(h, weight, bias)
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def linear_log_prob(h: Float[Tensor, "B T D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"] | None,
                    targets: Int64[Tensor, "B T"], softcap: float | None = None, *,
                    chunk_entries: int = CHUNK_ENTRIES) -> Float[Tensor, "B T"]:
    """Natural log-probability of each target; the sum over V is taken in float32 or better.

    Args:
        h: hidden vectors.
        weight: the readout's matrix.
        bias: the readout's bias.
        targets: token ids.
        softcap: c in c tanh(z / c).
        chunk_entries: logits held at once; a piece is never less than one token.
    """
    rows, wanted = h.flatten(0, 1), targets.flatten()
    step = max(1, chunk_entries // weight.shape[0])
    if rows.shape[0] <= step:
        return _piece(rows, weight, bias, wanted, softcap).view_as(targets)
    pieces = []
    for part, goals in zip(rows.split(step), wanted.split(step), strict=True):
        learned = part.requires_grad or weight.requires_grad
        again = torch.is_grad_enabled() and learned and not transformed()  # which cannot compute anything again
        pieces.append(checkpoint(_piece, part, weight, bias, goals, softcap, use_reentrant=False) if again
                      else _piece(part, weight, bias, goals, softcap))
    return torch.cat(pieces).view_as(targets)


def _piece(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, softcap: float | None) -> Tensor:
    z = linear_logits(h, weight, bias, softcap)
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    return -F.cross_entropy(wide, targets, reduction="none")
