"""Log-probabilities of targets under a linear readout, without holding logits of every token.

    log p(y | h) = z_y - logsumexp(z),   z = softcap(W h + b)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from weft.ops.few_rows import OTHER_ROWS, ROWS
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.linear import LINEAR, LinearCall

CHUNK_ENTRIES = 1 << 22
"""Logits held at once. Beyond that tokens are processed in pieces, which the backward pass computes again."""


class LogProbCall(NamedTuple):
    """The arguments of `linear_log_prob`."""

    h: Float[Tensor, "B T D"]
    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"] | None
    targets: Int64[Tensor, "B T"]
    softcap: float | None = None
    chunk_entries: int = CHUNK_ENTRIES

    def step(self) -> int:
        """Tokens of a piece."""
        return max(1, self.chunk_entries // self.weight.shape[0])


def linear_logits(h: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    """[...,V]: the readout's logits."""
    few = h.numel() <= ROWS.get(h.dtype, OTHER_ROWS) * h.shape[-1]
    z = LINEAR(LinearCall(h, weight, bias)) if few and not torch.is_grad_enabled() else F.linear(h, weight, bias)
    return z if softcap is None else capped(z, softcap)


def capped(z: Tensor, softcap: float | None) -> Tensor:
    """c tanh(z / c)."""
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def linear_log_prob(h: Float[Tensor, "B T D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, " V"] | None,
                    targets: Int64[Tensor, "B T"], softcap: float | None = None, *,
                    chunk_entries: int = CHUNK_ENTRIES) -> Float[Tensor, "B T"]:
    """Natural log-probability of each target; the sum over V is taken in float32 or better.

    Args:
        targets: token ids.
        softcap: c in c tanh(z / c).
        chunk_entries: logits held at once; a piece is never less than one token.
    """
    return LOG_PROB(LogProbCall(h, weight, bias, targets, softcap, chunk_entries))


def _at_once(call: LogProbCall) -> Tensor:
    y = _piece(call.h.flatten(0, 1), call.weight, call.bias, call.targets.flatten(), call.softcap)
    return y.view_as(call.targets)


def _pieces(call: LogProbCall) -> Tensor:
    h, weight, bias, targets, softcap, _ = call
    pieces = []
    for part, goals in zip(h.flatten(0, 1).split(call.step()), targets.flatten().split(call.step()), strict=True):
        again = torch.is_grad_enabled() and (part.requires_grad or weight.requires_grad)
        pieces.append(checkpoint(_piece, part, weight, bias, goals, softcap, use_reentrant=False) if again
                      else _piece(part, weight, bias, goals, softcap))
    return torch.cat(pieces).view_as(targets)


def _piece(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, softcap: float | None) -> Tensor:
    z = linear_logits(h, weight, bias, softcap)
    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    return -F.cross_entropy(wide, targets, reduction="none")


def _many(call: LogProbCall) -> str | None:
    return "few logits" if call.targets.numel() <= call.step() else None


def _examples(make: Make) -> Iterator[LogProbCall]:
    for entries, bias, softcap in ((CHUNK_ENTRIES, make(11), None), (22, None, 3.0)):
        yield LogProbCall(make(2, 7, 5), make(11, 5), bias, torch.arange(14).view(2, 7) % 11, softcap, entries)


LOG_PROB = OPERATIONS.add(Operation(
    "log_prob", "log-probabilities of targets under a linear readout",
    Form(REFERENCE, _at_once, "all logits at once"),
    Form("pieces", _pieces, "some tokens at a time, recomputed in backward", transformed=False, worth=_many),
    subject="h", examples=_examples, known_as=("linear_log_prob", "scores")))
