"""The common base of the scans of Elman networks, GRUs and LSTMs. All tensors are time-major, [T,B,...].

A scan is one operator to `torch.compile` (unrolled, 256 steps take minutes to compile). Its backward pass computes the
weight's gradient by one product over all steps, where automatic differentiation adds up one product per step.

States of linear recurrences whose rows are cut among processes (`weft.core.pieces`).

A piece maps the state before it to A S + B: A is what the piece leaves of a state, its decays multiplied together, and
B the state after it from zero. No process waits for another to go through its tokens; the price is that B is computed
besides the outputs, which need the state before the piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from weft.core.pieces import Pieces
from weft.ops.forms import Formula


def resets(starts: Bool[Tensor, "T B"] | None, steps: int) -> Sequence[Tensor | None]:
    """For each step, which rows [B,1] begin it with a zero state; None for steps where no row does."""
    return [None] * steps if starts is None else starts[..., None].unbind(0)


def entering(first: Float[Tensor, "B H"], after: Float[Tensor, "T B H"],
             starts: Bool[Tensor, "T B"] | None) -> Float[Tensor, "T B H"]:
    """The value with which each step begins: that ``after`` the previous step, ``first`` for the first step, zero at
    ``starts``."""
    before = torch.cat([first[None], after[:-1]])
    return before if starts is None else before.masked_fill(starts[..., None], 0)


def after_count(first: Float[Tensor, "B H"], after: Float[Tensor, "T B H"],
                count: Int64[Tensor, " B"] | None) -> Float[Tensor, "B H"]:
    """The value after ``count[b]`` steps of row b (None: after all steps); ``first`` where the count is zero."""
    if count is None:
        return after[-1].clone()  # a view would keep the whole chunk alive as long as the state
    every = torch.cat([first[None], after])
    return every.gather(0, count[None, :, None].expand(1, -1, first.shape[1]))[0]


def one_step(call: Any) -> str | None:
    """Why a scan does not pay: one step has nothing to gather."""
    return "a single step" if call.projected.shape[0] == 1 else None


def scan_flops(name: str) -> Mapping[str, Formula]:
    """FLOPs of ``weft::{name}_scan`` and of its backward pass; W is the first argument that is a matrix [G,H]."""
    def forward(projected: Tensor, weight: Tensor, *_: object) -> int:
        """W h for every step and row, [T,B,G] and W [G,H]."""
        return 2 * projected.shape[0] * projected.shape[1] * weight.numel()

    def backward(grad: Tensor, *others: Tensor) -> int:
        """W^T times the gates' gradients, and the weight's own gradient."""
        weight = next(each for each in others if each.dim() == 2)
        return 4 * grad.shape[0] * grad.shape[1] * weight.numel()

    return {f"weft.{name}_scan": forward, f"weft.{name}_scan_backward": backward}


def some_starts(steps: int, batch: int) -> Bool[Tensor, "T B"]:
    """Where documents begin, for examples."""
    return (torch.arange(steps)[:, None] + torch.arange(batch)) % 4 == 3


def matrix_before(pieces: Pieces, k: Float[Tensor, "B T J E"], v: Float[Tensor, "B T K F"],
                  log_decay: Float[Tensor, "#B #T K #E"] | None,
                  first: Float[Tensor, "B K E F"]) -> Float[Tensor, "B K E F"]:
    """The state before the piece, where every token adds k v^T to a state that decays.

    Args:
        k: keys; J divides K.
        log_decay: the logarithm of the decay by token; None: none decays.
        first: the state before the row.
    """
    keys = k.repeat_interleave(v.shape[2] // k.shape[2], 2)
    if log_decay is None:
        return pieces.entering(first, first.new_ones(()), torch.einsum("btke,btkf->bkef", keys, v))
    by_token = log_decay.expand(*v.shape[:3], -1)
    update = torch.einsum("btke,btkf->bkef", keys * remaining(by_token).exp(), v)
    return pieces.entering(first, by_token.sum(1).exp()[..., None], update)


def diagonal_before(pieces: Pieces, x: Float[Tensor, "B T D"], log_decay: Float[Tensor, "B T D"],
                    first: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """The state before the piece, where every token adds x to a state of which each feature decays by itself."""
    update = (x * remaining(log_decay).exp()).sum(1)
    return pieces.entering(first, log_decay.sum(1).exp(), update)


def remaining(log_decay: Float[Tensor, "B T ..."]) -> Float[Tensor, "B T ..."]:
    """The logarithm of what the later tokens of the piece leave of what each token adds."""
    later = log_decay[:, 1:].flip(1).cumsum(1).flip(1)
    return F.pad(later, (0, 0) * (later.dim() - 2) + (0, 1))
