"""Scaled dot-product attention over keys that are already stored: score, bias, cap, mask, normalise, values.

    softcap(scale * q.k + bias) -> mask -> softmax -> weighted values          (Vaswani et al. 2017, equation 1)

The backends take the same `AttentionInputs` and declare in `OFFERS` what they can express; `choose` picks by shapes
and plain facts, never by reading a tensor. Query heads share key/value heads in consecutive groups (Ainslie et al.
2023); no backend here repeats keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.errors import UnsupportedError
from weft.ops.dropout import dropout
from weft.ops.operator import transformed

Backend = Literal["auto", "reference", "sdpa"]
Feature = Literal["softcap", "value_terms", "weights"]


@dataclass(frozen=True)
class AttentionInputs:
    """One call. ``causal`` and ``allowed`` exclude each other; with neither, every key is seen.

    Attributes:
        q, k, v: queries [B,T,H,E], keys [B,S,K,E], values [B,S,K,F]; H is a multiple of K.
        scale: factor on q.k.
        bias: added to the scaled scores, [#B,#H,T,S].
        allowed: True where a query may see a key, [#B,#H,T,S].
        causal: T == S and query i sees keys 0..i.
        softcap: c in c * tanh(score / c); None for none.
        dropout: probability with which a weight is dropped.
        value_terms: what a position scheme adds to the output, from the weights [B,H,T,S].
    """

    q: Float[Tensor, "B T H E"]
    k: Float[Tensor, "B S K E"]
    v: Float[Tensor, "B S K F"]
    scale: float
    bias: Float[Tensor, "#B #H T S"] | None = None
    allowed: Bool[Tensor, "#B #H T S"] | None = None
    causal: bool = False
    softcap: float | None = None
    dropout: float = 0.0
    value_terms: Callable[[Tensor], Tensor | None] | None = None

    def needs(self) -> frozenset[Feature]:
        """Features beyond masks, biases and shared heads that this call requires."""
        found: set[Feature] = set()
        if self.softcap is not None:
            found.add("softcap")
        if self.value_terms is not None:
            found.add("value_terms")
        return frozenset(found)


OFFERS: dict[str, frozenset[Feature]] = {
    "reference": frozenset({"softcap", "value_terms", "weights"}),
    "sdpa": frozenset(),
}


def attend(call: AttentionInputs, backend: Backend = "auto") -> Float[Tensor, "B T H F"]:
    """The attention of ``call`` by the named backend, or by the one that `choose` picks.

    Raises:
        UnsupportedError: the named backend cannot express the call.
    """
    name, _ = choose(call, backend)
    if name == "reference":
        return reference(call)
    return sdpa(call) if name == "sdpa" else grouped_rows(call)


def choose(call: AttentionInputs, backend: Backend = "auto") -> tuple[str, str]:
    """The backend that will serve and the reason, from shapes and facts alone."""
    needs = call.needs()
    if backend != "auto":
        lacking = sorted(needs - OFFERS[backend])
        if lacking:
            raise UnsupportedError(f"the backend {backend!r} cannot express {', '.join(lacking)}.",
                                   where="backend", remedy="Use 'auto' or 'reference'.")
        return backend, "named by the user"
    if needs - OFFERS["sdpa"]:
        return "reference", f"only the reference expresses {', '.join(sorted(needs))}"
    if transformed():
        return "reference", "torch.func knows no second derivatives of the fused kernel"
    if call.q.shape[1] == 1 and call.q.device.type == "cpu" and not torch.is_grad_enabled():
        return "grouped_rows", "one query on a CPU: the queries of a group as rows read each key once"
    if call.bias is not None and call.bias.requires_grad and call.q.device.type == "cpu":
        return "reference", "SDPA takes the slow math path for a bias that needs a gradient"
    return "sdpa", "the fused kernel expresses all of the call"


def reference(call: AttentionInputs) -> Float[Tensor, "B T H F"]:
    """Every stage written out; the query heads of a group are rows against their one key head."""
    heads, groups = call.q.shape[2], call.k.shape[2]
    q = call.q.unflatten(2, (groups, heads // groups))
    scores = torch.einsum("btkge,bske->bkgts", q, call.k).flatten(1, 2) * call.scale
    if call.bias is not None:
        scores = scores + call.bias
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    weights = dropout(_normalise(scores, _visible(call)), call.dropout)
    mixed = torch.einsum("bkgts,bskf->btkgf", weights.unflatten(1, (groups, heads // groups)), call.v).flatten(2, 3)
    terms = None if call.value_terms is None else call.value_terms(weights)
    return mixed if terms is None else mixed + terms


def sdpa(call: AttentionInputs) -> Float[Tensor, "B T H F"]:
    """`torch.nn.functional.scaled_dot_product_attention`, with a bias and a mask folded into one additive mask."""
    q, k, v = (x.transpose(1, 2) for x in (call.q, call.k, call.v))
    shared = q.shape[1] != k.shape[1]
    visible = None if call.causal and call.bias is None else _visible(call)
    seen = None if visible is None or call.causal else visible.any(-1, keepdim=True)
    if visible is not None and seen is not None:
        visible = visible | ~seen
    mask = _additive(call.bias, visible, q.dtype)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=call.dropout,
                                       is_causal=call.causal and call.bias is None, scale=call.scale,
                                       enable_gqa=shared)
    if seen is not None:
        y = torch.where(seen, y, torch.zeros((), dtype=y.dtype, device=y.device))
    return y.transpose(1, 2)


def grouped_rows(call: AttentionInputs) -> Float[Tensor, "B 1 H F"]:
    """SDPA for one query a head, without a backward pass: the H/K query heads of a group are the rows of one query
    matrix, so that their keys are read once, for all of them."""
    batch, _, heads, size = call.q.shape
    groups = call.k.shape[2]
    rows = call.q.reshape(batch, groups, heads // groups, size)
    mask = _additive(call.bias, call.allowed, call.q.dtype)
    if mask is not None and mask.dtype == torch.bool:  # the kernel would do it, for every layer
        mask = torch.zeros((), dtype=call.q.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    if mask is not None and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], groups, heads // groups, mask.shape[-1])
    y = F.scaled_dot_product_attention(rows, call.k.transpose(1, 2), call.v.transpose(1, 2), attn_mask=mask,
                                       scale=call.scale).reshape(batch, 1, heads, call.v.shape[3])
    return y if call.allowed is None else y.masked_fill_(~call.allowed.any(-1).transpose(1, 2)[..., None], 0.0)


def _visible(call: AttentionInputs) -> Tensor | None:
    if not call.causal:
        return call.allowed
    steps = call.q.shape[1]
    return torch.ones(steps, steps, dtype=torch.bool, device=call.q.device).tril()


def _normalise(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible keys, in float32 or better; a query that sees none gets zero weights."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if visible is None:
        return wide.softmax(-1).to(scores.dtype)
    hidden = wide.masked_fill(~visible, -torch.inf)
    weights = hidden.masked_fill(~visible.any(-1, keepdim=True), 0.0).softmax(-1)
    return weights.masked_fill(~visible, 0.0).to(scores.dtype)


def _additive(bias: Tensor | None, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if bias is None:
        return visible
    bias = bias.to(dtype)
    return bias if visible is None else bias.masked_fill(~visible, -torch.inf)
