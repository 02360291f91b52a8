"""The recurrence of RWKV-5 and 6: a token reads the state before it, and itself with a bonus.

    o_t = r_t (S_{t-1} + diag(u) k_t v_t^T),   S_t = diag(a_t) S_{t-1} + k_t v_t^T          S [E,F] for each head

(Peng et al. 2024, equations 17 to 19). r_{t+1} S_t is what `linear_recurrence` gives for queries shifted by one token
to the left.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.core.pieces import Pieces
from weft.ops.linear_recurrence import before_piece, linear_recurrence
from weft.ops.operator import widen


def delayed_recurrence(r: Float[Tensor, "B T H E"], k: Float[Tensor, "B T H E"], v: Float[Tensor, "B T H F"],
                       bonus: Float[Tensor, "H E"], log_decay: Float[Tensor, "#B #T H E"],
                       before: Float[Tensor, "B H E F"] | None, starts: Bool[Tensor, "B T"] | None,
                       valid: Bool[Tensor, "B T"] | None, pieces: Pieces | None = None) -> tuple[Tensor, Tensor]:
    """The outputs [B,T,H,F] and the state after at least one token, in float32 or better.

    Args:
        r: receptances, which read.
        k: keys.
        v: values.
        bonus: u.
        log_decay: the logarithm of a_t, at most 0.
        before: the state before the first token; None: zero.
        starts: where a document begins, before which the state is cleared; None: nowhere.
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
        pieces: of rows that are cut among processes, for which ``before`` is the state before the row.
    """
    r, k, v = widen(r), widen(k), widen(v)
    if pieces is not None and before is not None:
        before = before_piece(pieces, k, v, log_decay.expand_as(k), before.to(v.dtype), starts, valid)
    following = torch.cat([r[:, 1:], torch.zeros_like(r[:, :1])], 1)
    read, after = linear_recurrence(following, k, v, log_decay.expand_as(k), before, starts, valid)
    entering = torch.zeros_like(v[:, 0]) if before is None else (r[:, 0, :, None] @ before.to(r.dtype))[:, :, 0]
    past = torch.cat([entering[:, None], read[:, :-1]], 1)
    past = past if starts is None else past.masked_fill(starts[..., None, None], 0)
    return past + (r * widen(bonus) * k).sum(-1, keepdim=True) * v, after
