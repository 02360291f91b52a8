"""Keys and values of attention whose rows are cut among processes (`weft.core.pieces`).

Every process gathers the keys and values of all pieces and computes its own queries. The processes do not take turns,
as they would to hand the keys on; the price is that each holds, while a layer computes, the keys and values of all
tokens, which are narrower than the rest of what training keeps of a layer wherever heads share keys or T is short
against the width. Later pieces have more keys to read than earlier ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.layer import LayerState, advance
from weft.core.pieces import Pieces
from weft.core.span import Span
from weft.mixers.key_value import ReadableKeys


def store_joined(pieces: Pieces, reach: int | None, state: LayerState | None, k: Tensor, v: Tensor, span: Span, *,
                 ahead: bool) -> ReadableKeys:
    """The keys and values of all pieces that the piece's queries may read. The state keeps none.

    Args:
        pieces: of the call.
        reach: the number of most recent tokens that a query may attend to; None: all.
        state: of the layer, on the clock of this piece.
        k: keys of the piece, [B,P,K,E].
        v: values of the piece, [B,P,K,F].
        span: of the piece.
        ahead: whether queries may attend to later tokens.
    """
    seen, keys = span.ticks.once(("joined", ahead, reach), lambda: pieces.keys(reach, ahead=ahead))
    whole = pieces.gathered(torch.cat([k, v.to(k.dtype)], -1))[:, seen]
    held, values = whole.split_with_sizes([k.shape[-1], v.shape[-1]], -1)
    return ReadableKeys(held, values.to(v.dtype), keys, advance(state, span))
