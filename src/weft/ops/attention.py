"""Scaled dot-product attention over keys that are already stored: score, bias, cap, mask, normalise, values.

    softcap(scale * q.k + bias) -> mask -> softmax -> weighted values          (Vaswani et al. 2017, equation 1)

The call is symbolic: the chosen form writes out the mask and the terms that are added to the scores, as far as it needs
them. Query heads share key/value heads in consecutive groups (Ainslie et al. 2023); no form repeats keys.

Terms that are added to the scaled scores of attention, as symbols: a form writes out what it needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Causal, GlobalTokens, Mask, Window
from weft.masks.visible import AllKeys, Grid, MaskFacts, Parts, QueryBlock, VisibleKeys, picked, visible
from weft.ops.dropout import dropout
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.linear import widens


class ScoreTerm(ABC):
    """Base of terms.

    Attributes:
        learns: a gradient flows into it.
        by_distance: it has one number for each distance of two tokens and head, so that it is the same for all blocks
            of a grid.
    """

    learns: bool = False
    by_distance: bool = False

    @abstractmethod
    def dense(self) -> Float[Tensor, "#B #H T S"]:
        """For every query and key."""

    @abstractmethod
    def at(self, queries: slice, keys: Parts) -> Float[Tensor, "#B #H t s"]:
        """For some queries and some keys."""

    def distances(self, least: int, count: int) -> Float[Tensor, "#B #H L"]:
        """Return the term's scores for ``count`` distances (a key's position minus a query's) from ``least`` on; only
        a term ``by_distance`` has them."""
        raise NotImplementedError(f"{type(self).__name__} is no term by distance")

    def same(self, grid: Grid) -> Float[Tensor, "#B #H rows width"] | None:
        """Laid on a grid, where it is the same for all blocks; None where it is not."""
        return None

    @final
    def laid(self, grid: Grid) -> Float[Tensor, "#B #H _ width"]:
        """Laid on a grid, for one block where all are alike, else for all of them."""
        one = self.same(grid)
        return grid.laid(self._of_block, 0.0) if one is None else one

    def _of_block(self, block: QueryBlock) -> Tensor:
        return self.at(block.queries, block.keys)


class WrittenTerm(ScoreTerm):
    """A term that is already written out.

    Args:
        bias: for every query and key.
    """

    def __init__(self, bias: Float[Tensor, "#B #H T S"]) -> None:
        self._bias = bias
        self.learns = bias.requires_grad

    def dense(self) -> Tensor:
        return self._bias

    def at(self, queries: slice, keys: Parts) -> Tensor:
        return picked(self._bias[..., queries, :], 3, keys)


def slid(by_distance: Float[Tensor, "*#BH L"], rows: int, width: int) -> Float[Tensor, "*#BH rows width"]:
    """A view of a matrix with one number on each diagonal: entry (r, c) is entry c - r + rows - 1 of ``by_distance``,
    whose L = rows + width - 1 numbers begin with that of the lower left corner."""
    return by_distance.unfold(-1, width, 1).flip(-2)


def joined(terms: tuple[ScoreTerm, ...], grid: Grid | None = None) -> Tensor | None:
    """The sum of terms, for every query and key or laid on a grid; None of no terms."""
    total: Tensor | None = None
    for term in terms:
        each = term.dense() if grid is None else term.laid(grid)
        total = each if total is None else _sum(total, each)
    return total


def _sum(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two tensors, each laid for one block or for all."""
    rows = max(one.shape[2], other.shape[2])
    return _repeated(one, rows) + _repeated(other, rows)


def _repeated(x: Tensor, rows: int) -> Tensor:
    return x if x.shape[2] == rows else torch.cat([x] * -(-rows // x.shape[2]), 2)[:, :, :rows]


ROWS = 128
"""Queries of a block of the form ``banded``."""


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of the operation.

    Attributes:
        q, k, v: queries [B,T,H,E], keys [B,S,K,E], values [B,S,K,F]; H is a multiple of K.
        visible: which keys each query may attend to.
        terms: added to the scaled scores.
        softcap: c in c * tanh(score / c); None for none.
        sinks: one more score for each head, of a key without a value: it takes weight and adds nothing to the output
            (gpt-oss; Xiao et al. 2024, section 3.3, have a learned key). With [B,T,H] one for each query.
        dropout: probability with which a weight is dropped.
        value_terms: computes from the weights [B,H,T,S] what a position scheme adds to the output.
        record: called with the weights [B,H,T,S], before any are dropped.
    """

    q: Float[Tensor, "B T H E"]
    k: Float[Tensor, "B S K E"]
    v: Float[Tensor, "B S K F"]
    scale: float
    visible: VisibleKeys = field(default_factory=AllKeys)
    terms: tuple[ScoreTerm, ...] = ()
    softcap: float | None = None
    sinks: Float[Tensor, " H"] | Float[Tensor, "B T H"] | None = None
    dropout: float = 0.0
    value_terms: Callable[[Tensor], Tensor | None] | None = None
    record: Callable[[Tensor], None] | None = None

    def needs_weights(self) -> bool:
        """Whether something reads the weights of all pairs."""
        return self.value_terms is not None or self.record is not None


def reference(call: AttentionCall) -> Float[Tensor, "B T H F"]:
    """Every stage written out; the query heads of a group are rows of one product with their key head."""
    heads, groups = call.q.shape[2], call.k.shape[2]
    q = call.q.unflatten(2, (groups, heads // groups))
    scores = torch.einsum("btkge,bske->bkgts", q, call.k).flatten(1, 2) * call.scale
    bias = joined(call.terms)
    if bias is not None:
        scores = scores + bias
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    weights = _normalise(scores, _allowed(call), call.sinks)
    if call.record is not None:
        call.record(weights)
    weights = dropout(weights, call.dropout)
    mixed = torch.einsum("bkgts,bskf->btkgf", weights.unflatten(1, (groups, heads // groups)), call.v).flatten(2, 3)
    terms = None if call.value_terms is None else call.value_terms(weights)
    return mixed if terms is None else mixed + terms


def sdpa(call: AttentionCall) -> Float[Tensor, "B T H F"]:
    """`torch.nn.functional.scaled_dot_product_attention`, with a bias and a mask folded into one additive mask."""
    q, k, v = call.q.transpose(1, 2), call.k.transpose(1, 2), call.v.transpose(1, 2)
    shared = q.shape[1] != k.shape[1]
    bias = joined(call.terms)
    plain = call.visible.causal and bias is None
    allowed = None if plain else _allowed(call)
    # A query without any visible key would get NaN from a softmax over -inf alone: it attends to all, and is zeroed.
    sighted = None if allowed is None or call.visible.causal else allowed.any(-1, keepdim=True)
    if allowed is not None and sighted is not None:
        allowed = allowed | ~sighted
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=_additive(bias, allowed, q.dtype), dropout_p=call.dropout,
                                       is_causal=plain, scale=call.scale, enable_gqa=shared)
    if sighted is not None:
        y = torch.where(sighted, y, torch.zeros((), dtype=y.dtype, device=y.device))
    return y.transpose(1, 2)


def wide_sdpa(call: AttentionCall) -> Float[Tensor, "B T H F"]:
    """`sdpa` in float32, rounded once. What it keeps for the backward pass is kept in the dtype of the call, but for
    the sums of each query's weights; a compiler chooses for itself what it keeps, and casts again."""
    narrow = call.q.dtype
    wide = replace(call, q=call.q.float(), k=call.k.float(), v=call.v.float())

    def kept(x: Tensor) -> Tensor:
        return x.to(narrow) if x.dim() == 4 and x.dtype == torch.float32 else x

    def read(x: Tensor) -> Tensor:
        return x.float() if x.dtype == narrow else x

    # Autocast would make the kernel's tensors narrow again, and what it keeps is read as wide.
    as_given = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()
    compiling = torch.compiler.is_compiling()
    with as_given, nullcontext() if compiling else torch.autograd.graph.saved_tensors_hooks(kept, read):
        y = sdpa(wide)
    return y.to(narrow)


def grouped_rows(call: AttentionCall) -> Float[Tensor, "B 1 H F"]:
    """SDPA for one query per head, without a backward pass: the H/K query heads of a group are the rows of one query
    matrix, so that the keys of the group are read once."""
    batch, _, heads, size = call.q.shape
    groups = call.k.shape[2]
    rows = call.q.reshape(batch, groups, heads // groups, size)
    allowed = None if call.visible.causal or call.visible.everything else call.visible.dense()
    mask = _additive(joined(call.terms), allowed, call.q.dtype) if call.terms else allowed
    if mask is not None and mask.dtype == torch.bool:  # else the kernel converts it in every layer
        mask = torch.zeros((), dtype=call.q.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    if mask is not None and mask.shape[1] > 1:
        mask = mask.reshape(mask.shape[0], groups, heads // groups, mask.shape[-1])
    y = F.scaled_dot_product_attention(rows, call.k.transpose(1, 2), call.v.transpose(1, 2), attn_mask=mask,
                                       scale=call.scale).reshape(batch, 1, heads, call.v.shape[3])
    return y if allowed is None else y.masked_fill_(~allowed.any(-1).transpose(1, 2)[..., None], 0.0)


def _allowed(call: AttentionCall) -> Tensor | None:
    if not call.visible.causal:
        return call.visible.dense()
    steps = call.q.shape[1]
    return torch.ones(steps, steps, dtype=torch.bool, device=call.q.device).tril()


def _normalise(scores: Tensor, allowed: Tensor | None, sinks: Tensor | None) -> Tensor:
    """Softmax over the visible keys, in float32 or wider; a query without any gets zero weights."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if sinks is not None:
        column = sinks.to(wide.dtype)[:, None, None]
        if sinks.dim() > 1:  # one for each query
            column = sinks.to(wide.dtype).transpose(1, 2)[..., None]
        column = column.expand(*wide.shape[:-1], 1)
        hidden = wide if allowed is None else wide.masked_fill(~allowed, -torch.inf)
        return torch.cat([column, hidden], -1).softmax(-1)[..., 1:].to(scores.dtype)
    if allowed is None:
        return wide.softmax(-1).to(scores.dtype)
    hidden = wide.masked_fill(~allowed, -torch.inf)
    weights = hidden.masked_fill(~allowed.any(-1, keepdim=True), 0.0).softmax(-1)
    return weights.masked_fill(~allowed, 0.0).to(scores.dtype)


def _additive(bias: Tensor | None, allowed: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if bias is None:
        return allowed
    bias = bias.to(dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)


def beyond_library(call: AttentionCall) -> str | None:
    """Why PyTorch's fused attention cannot serve; None where it can."""
    if call.softcap is not None:
        return "it has no softcap"
    if call.sinks is not None:
        return "it has no sinks"
    return "it returns no weights" if call.value_terms is not None or call.record is not None else None


def slow_in_library(call: AttentionCall) -> str | None:
    """Why PyTorch's fused attention does not pay; None where it does."""
    if call.q.device.type == "cpu" and torch.is_grad_enabled() and any(term.learns for term in call.terms):
        return "a learned bias is slow in it on a CPU"
    return None


def _not_wider(call: AttentionCall) -> str | None:
    return slow_in_library(call) if widens(call.q) else "this processor multiplies the dtype itself as fast"


def _beyond_rows(call: AttentionCall) -> str | None:
    if call.q.shape[1] != 1:
        return "it takes a single query"
    if call.dropout:
        return "it has no dropout"
    # `beyond_library`, where it has nothing against a call, written out for a step of one token.
    usual = call.softcap is None and call.sinks is None and call.value_terms is None and call.record is None
    return None if usual else beyond_library(call)


def _examples(make: Make) -> Iterator[AttentionCall]:
    def inputs(steps: int, heads: int = 2, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
        return make(2, steps, heads, 3), make(2, steps, kv_heads, 3), make(2, steps, kv_heads, 5)

    def under(mask: Mask, q: Tensor) -> VisibleKeys:
        span = WHOLE.resolve(None, q)
        return visible(MaskFacts.of(mask, q.shape[2]), Keys.of(span.ticks), span)

    for steps, mask in ((1, Causal()), (7, Causal()), (2 * ROWS + 5, Window(3)), (2 * ROWS, Window(ROWS + 1)),
                        (2 * ROWS + 1, Causal() & (Window(4) | GlobalTokens(0)))):
        q, k, v = inputs(steps)
        yield AttentionCall(q, k, v, 0.7, under(mask, q))
    q, k, v = inputs(2 * ROWS + 5, 4)
    yield AttentionCall(q, k, v, 0.7, under(Causal(), q), (WrittenTerm(make(1, 4, q.shape[1], q.shape[1])),))
    yield AttentionCall(q, k, v, 0.7, under(Window(9), q), softcap=2.0, sinks=make(4))
    q, k, v = inputs(1, 4)
    yield AttentionCall(q, make(2, 6, 2, 3), make(2, 6, 2, 5), 0.7)


ATTENTION = OPERATIONS.add(Operation(
    "attention", "softmax(scale q.k + bias, masked) v",
    Form(REFERENCE, reference, "every stage written out", known_as=("naive", "eager", "math")),
    LateForm("one_query", "weft.ops.native_query.FORM"),
    LateForm("triton_query", "weft.ops.triton.query_attention.FORM", "cuda"),
    Form("grouped_rows", grouped_rows, "each key read once for a group of query heads",
         devices=frozenset({"cpu"}), gradients="without", transformed=False, serves=_beyond_rows),
    LateForm("native", "weft.ops.native_attention.FORM"), LateForm("flex", "weft.ops.triton.attention.FORM", "cuda"),
    LateForm("banded", "weft.ops.banded_attention.FORM", None),
    Form("wide_sdpa", wide_sdpa, "PyTorch's fused kernel in float32, rounded once", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.bfloat16}), gradients="with", transformed=False, serves=beyond_library,
         worth=_not_wider),
    Form("sdpa", sdpa, "PyTorch's fused kernel", transformed=False, serves=beyond_library, worth=slow_in_library,
         known_as=("flash", "fused", "library", "torch")),
    subject="q", examples=_examples, known_as=("scores", "sdpa")))
