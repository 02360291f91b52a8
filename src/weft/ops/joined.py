"""States of linear recurrences whose rows are cut among processes (`weft.core.pieces`).

A piece maps the state before it to A S + B: A is what the piece leaves of a state, its decays multiplied together, and
B the state after it from zero. No process waits for another to go through its tokens; the price is that B is computed
besides the outputs, which need the state before the piece.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.pieces import Pieces


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
