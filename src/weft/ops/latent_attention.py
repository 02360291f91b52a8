"""Attention over latents: every token keeps one short vector c, from which all heads make their keys and values.

    k_h,s = [U_h c_s, r_s]     v_h,s = W_h c_s     y_h,t = sum_s softmax_s(scale [n_h,t, p_h,t] . k_h,s) v_h,s

(DeepSeek-AI 2024, arXiv:2405.04434, section 2.1, equations 9 to 19). The latent c_s [L] and the rotated key r_s [R] are
common to all heads; a query has a part n [N] for the content and a part p [R] for the position.

The naive form is the equation: it expands the latents of all keys to keys [H,N+R] and values [H,F]. ``absorbed`` uses
n . U c = (U^T n) . c and sum_s w_s W c_s = W sum_s w_s c_s: queries are brought to the latents, which are then keys and
values of one head that all query heads share, and no key is expanded. Counted in products for each head, row and

    expanded    S (N + F) L + T S (N + R + F)
    absorbed    T (N + F) L + T S (2 L + R)

for T queries and S keys, so a call that reads many more keys than it has queries, as decoding does, takes the second,
and a call whose keys are its own tokens takes the first unless 2 L < N + F. The counts leave out what masks hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.attention import ATTENTION, AttentionCall
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation


class LatentCall(NamedTuple):
    """The arguments of the operation.

    Attributes:
        content: what queries compare with the expanded latents.
        turned: what they compare with the rotated keys.
        kept: latents, and behind them the rotated keys.
        expand: the map of a latent [..., L] to the keys and values of all heads [..., H (N+F)], each head's together.
        matrix: of that map; None where it is not the product with one matrix.
        attend: attention over queries [B,T,H,E], keys [B,S,K,E] and values [B,S,K,F], to [B,T,H,F].
    """

    content: Float[Tensor, "B T H N"]
    turned: Float[Tensor, "B T H R"]
    kept: Float[Tensor, "B S 1 L+R"]
    expand: Callable[[Tensor], Tensor]
    matrix: Float[Tensor, "H*(N+F) L"] | None
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]


def _expanded(call: LatentCall) -> Float[Tensor, "B T H F"]:
    """Keys and values of every head, written out."""
    heads, size = call.content.shape[2:]
    latent, shared = call.kept.split([call.kept.shape[-1] - call.turned.shape[-1], call.turned.shape[-1]], -1)
    both = call.expand(latent.squeeze(2)).unflatten(-1, (heads, -1))
    k, v = both.split([size, both.shape[-1] - size], -1)
    k = torch.cat([k, shared.expand(-1, -1, heads, -1)], -1)
    return call.attend(torch.cat([call.content, call.turned], -1), k, v)


def _absorbed(call: LatentCall) -> Float[Tensor, "B T H F"]:
    """Latents as the keys and values of one head."""
    assert call.matrix is not None, "the form serves calls with a matrix"
    heads, size = call.content.shape[2:]
    up, down = call.matrix.to(call.content.dtype).unflatten(0, (heads, -1)).tensor_split([size], 1)
    q = torch.cat([torch.einsum("bthn,hnl->bthl", call.content, up), call.turned], -1)
    y = call.attend(q, call.kept, call.kept[..., :up.shape[-1]])
    return torch.einsum("bthl,hfl->bthf", y, down)


def _no_matrix(call: LatentCall) -> str | None:
    return "the map of latents is not one matrix" if call.matrix is None else None


def _more_products(call: LatentCall) -> str | None:
    """Why the queries are not brought to the latents: it would take more products."""
    if call.matrix is None:
        return None
    steps, heads = call.content.shape[1:3]
    keys, wide = call.kept.shape[1], call.kept.shape[-1]
    turned = call.turned.shape[-1]
    latent, both = wide - turned, call.matrix.shape[0] // heads
    absorbed = steps * both * latent + steps * keys * (2 * latent + turned)
    expanded = keys * both * latent + steps * keys * (both + turned)
    return None if absorbed < expanded else "expanding the latents takes no more products"


def _examples(make: Make) -> Iterator[LatentCall]:
    for steps, keys, latent in ((1, 1, 4), (1, 9, 4), (7, 9, 2), (9, 9, 12), (0, 3, 4)):
        matrix = make(3 * (2 + 5), latent)

        def expand(x: Tensor, matrix: Tensor = matrix) -> Tensor:
            return x @ matrix.T

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return ATTENTION(AttentionCall(q, k, v, 0.6), REFERENCE)

        yield LatentCall(make(2, steps, 3, 2), make(2, steps, 3, 4), make(2, keys, 1, latent + 4), expand, matrix,
                         attend)


LATENT_ATTENTION = OPERATIONS.add(Operation(
    "latent_attention", "attention whose keys and values are expanded from latents",
    Form(REFERENCE, _expanded, "keys and values of every head", known_as=("expanded", "naive")),
    Form("absorbed", _absorbed, "queries brought to the latents", serves=_no_matrix, worth=_more_products,
         known_as=("absorb", "latent")),
    subject="content", examples=_examples, known_as=("mla", "latent")))
