"""Scaled dot-product attention, one query at a time and one head at a time (Vaswani et al. 2017, section 3.2).

One sequence: x[T, D], memory[S, D']. Heads lie one after the other in the projections' rows: W_q[H E, D],
W_k[K E, D'], W_v[K Ev, D'], W_o[D_out, H Ev]; query head h reads key/value head h // (H / K) (Shazeer 2019;
Ainslie et al. 2023). Stage order: project, norm, rotate, score, scale, bias, cap, mask, normalise, output.
Compared with torch.nn.MultiheadAttention, torch's scaled_dot_product_attention (enable_gqa, attn_mask) and, for the
sinks, transformers' GPT-OSS attention (stored numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import softmax

Array = NDArray[Any]
Turn = Callable[[Array], Array]


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """y = x W^T + b. Compared with torch.nn.functional.linear."""
    return x @ weight.T if bias is None else x @ weight.T + bias


def scores(q: Array, k: Array, scale: float | None = None) -> Array:
    """s_ij = scale q_i . k_j for one head, [T, S]; scale None means 1/sqrt(E), 1.0 means unscaled."""
    scale = 1.0 / math.sqrt(q.shape[1]) if scale is None else scale
    return np.array([[scale * (q_i @ k_j) for k_j in k] for q_i in q])


def bilinear_scores(x: Array, memory: Array, weight: Array, scale: float = 1.0) -> Array:
    """s_ij = scale m_j^T W x_i, [T, S], W[D', D]: the lecture's k^T W q, unscaled by default.

    Luong et al. 2015, section 3.1 (general). Equals separate projections with W = W_k^T W_q.
    """
    return np.array([[scale * (m_j @ weight @ x_i) for m_j in memory] for x_i in x])


def weights(
    raw: Array, bias: Array | None = None, softcap: float | None = None, mask: Array | None = None, sink: Any = None
) -> Array:
    """Row-wise softmax of cap tanh((raw + bias) / cap) over the keys where mask[T, S] is true.

    The cap comes before the mask (Gemma 2, section 2). A row that may see no key gets weights 0. `sink` is a logit
    that joins each row's denominator and is then dropped, so rows sum to less than 1 (GPT-OSS; neither biased,
    capped nor masked).
    """
    logits = raw if bias is None else raw + bias
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    out = np.zeros(logits.shape)
    for t in range(logits.shape[0]):
        seen = [s for s in range(logits.shape[1]) if mask is None or mask[t, s]]
        row = [logits[t, s] for s in seen] + ([] if sink is None else [sink])
        if seen:
            out[t, seen] = softmax(np.array(row))[: len(seen)]
    return out


def multi_head_attention(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array | None,
    n_heads: int,
    n_kv_heads: int | None = None,
    *,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    memory: Array | None = None,
    clip: float | None = None,
    norm_q: Turn | None = None,
    norm_k: Turn | None = None,
    norm_all_q: Turn | None = None,
    norm_all_k: Turn | None = None,
    rotate_q: Turn | None = None,
    rotate_k: Turn | None = None,
    scale: float | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    mask: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """softmax(Q K^T / sqrt(E) + bias, masked) V for each head, concatenated, times W_o^T; [T, D_out].

    Queries, keys and values beyond -clip and clip are set to these. norm_* and rotate_* act on one head's [T, E] or
    [S, E]: an RMSNorm per head, a rotary function with its positions bound. norm_all_* act before on all heads'
    queries [T, H E] or keys [S, K E]. bias[H, T, S] is added after the scale;
    mask[T, S] (or [H, T, S]) is true where a query may look; sinks[H]. With `memory` the keys and values come from it
    (cross-attention). w_o None leaves the concatenated heads.
    """
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    memory = x if memory is None else memory
    wide = linear(x, w_q, b_q), linear(memory, w_k, b_k), linear(memory, w_v, b_v)
    q_all, k_all, v_all = wide if clip is None else [np.minimum(np.maximum(each, -clip), clip) for each in wide]
    q_all = q_all if norm_all_q is None else norm_all_q(q_all)
    k_all = k_all if norm_all_k is None else norm_all_k(k_all)
    queries = np.split(q_all, n_heads, axis=1)
    keys = np.split(k_all, n_kv_heads, axis=1)
    values = np.split(v_all, n_kv_heads, axis=1)
    heads = []
    for h in range(n_heads):
        shared = h // (n_heads // n_kv_heads)
        q, k = queries[h], keys[shared]
        q = q if norm_q is None else norm_q(q)
        k = k if norm_k is None else norm_k(k)
        q = q if rotate_q is None else rotate_q(q)
        k = k if rotate_k is None else rotate_k(k)
        attention = weights(
            scores(q, k, scale),
            None if bias is None else bias[h],
            softcap,
            mask if mask is None or mask.ndim == 2 else mask[h],
            None if sinks is None else sinks[h],
        )
        heads.append(attention @ values[shared])
    joined = np.concatenate(heads, axis=1)
    return joined if w_o is None else linear(joined, w_o, b_o)


def bilinear_attention(
    x: Array, weight: Array, *, values: Array | None = None, scale: float = 1.0, mask: Array | None = None
) -> Array:
    """One head with scores x_j^T W x_i and, unless values[T, Ev] are given, the embeddings themselves as values."""
    return weights(bilinear_scores(x, x, weight, scale), mask=mask) @ (x if values is None else values)
