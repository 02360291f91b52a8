"""Attention to the last W tokens, written in three ways, and by Weft's own forms.

    y_i = sum_j softmax_j(q_i.k_j / sqrt(E)) v_j      over i - W < j <= i

Queries, keys and values are [B,T,H,E]. The loop and the chunks are those of Beltagy et al. 2020, appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Causal, Window
from weft.masks.visible import MaskFacts, visible
from weft.ops.attention import ATTENTION, AttentionCall


def naive(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """All T x T scores, those outside the window set to -inf: time and memory grow with T^2."""
    place = torch.arange(q.shape[1])
    back = place[:, None] - place
    scores = torch.einsum("bihe,bjhe->bhij", q, k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill((back < 0) | (back >= size), -math.inf)
    return torch.einsum("bhij,bjhe->bihe", scores.softmax(-1), v)


def per_token(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """One query after the other, each with the keys of its window: T W scores, by T small steps of Python.

    The gradient of a slice is as large as what it was cut from, so PyTorch's backward pass takes time with T^2 all the
    same."""
    results = []
    for i in range(q.shape[1]):
        near = slice(max(0, i - size + 1), i + 1)
        scores = torch.einsum("bhe,bjhe->bhj", q[:, i], k[:, near]) / math.sqrt(q.shape[-1])
        results.append(torch.einsum("bhj,bjhe->bhe", scores.softmax(-1), v[:, near]))
    return torch.stack(results, 1)


def overlapping_chunks(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """Chunks of W queries, each with the 2 W keys of its own chunk and of the one before: 2 T W scores, of which half
    are hidden, in a few large products."""
    steps = q.shape[1]
    count = -(-steps // size)
    after = count * size - steps
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, 0, before, after)) for x, before in ((q, 0), (k, size), (v, size)))
    q = q.unflatten(1, (count, size))
    k, v = (x.unfold(1, 2 * size, size) for x in (k, v))  # [B,chunks,H,E,2W]: each chunk overlaps the next by W
    back = torch.arange(size)[:, None] + size - torch.arange(2 * size)
    hidden = (back < 0) | (back >= size)
    empty = (torch.arange(count) == 0)[:, None, None] & (torch.arange(2 * size) < size)  # before the first token
    scores = torch.einsum("bcihe,bchej->bchij", q, k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill((hidden | empty)[:, None], -math.inf)
    return torch.einsum("bchij,bchej->bcihe", scores.softmax(-1), v).flatten(1, 2)[:, :steps]


def fast(q: Tensor, k: Tensor, v: Tensor, size: int) -> Tensor:
    """The form of attention that Weft chooses for the window."""
    span = WHOLE.resolve(None, q)
    seen = visible(MaskFacts.of(Causal() & Window(size), q.shape[2]), Keys.of(span.ticks), span)
    return ATTENTION(AttentionCall(q, k, v, 1 / math.sqrt(q.shape[-1]), seen))


WAYS: Mapping[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = MappingProxyType({
    "naive": naive, "per token": per_token, "overlapping chunks": overlapping_chunks, "fast": fast})
