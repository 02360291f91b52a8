"""Token shift: the input of the previous token, across calls but never across documents (RWKV, section 3.1)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.span import Span


def previous_token(x: Float[Tensor, "B T D"], last: Float[Tensor, "B D"] | None, span: Span) -> Float[Tensor, "B T D"]:
    """x_{t-1} for every t; zero for a document's first token.

    Args:
        last: the token before the chunk, from the state; None for none.
    """
    before = torch.zeros_like(x[:, :1]) if last is None else last.to(x.dtype)[:, None]
    if x.shape[1] == 0:
        return x
    if span.pieces is not None:
        before = span.pieces.before(x, 1)
    shifted = torch.cat([before[:, :1], x[:, :-1]], dim=1)
    if not span.ticks.packed:
        return shifted
    return shifted.masked_fill(span.ticks.starts()[..., None], 0.0)


def last_token(x: Float[Tensor, "B T D"], last: Float[Tensor, "B D"], span: Span) -> Float[Tensor, "B D"]:
    """The value of ``last`` after the chunk: each row's last counted token; rows that count none keep theirs."""
    if x.shape[1] == 0:
        return last
    if span.count is None:
        return x[:, -1].to(last.dtype, copy=True)  # a view would keep the whole chunk alive
    place = (span.count - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
    newest = x.gather(1, place)[:, 0].to(last.dtype)
    return torch.where(span.count[:, None] > 0, newest, last)
