"""Attention of one query for each head over stored keys, by Triton: what a step of decoding does with its cache.

Query heads that share a key head are taken together, so that its keys and values are read once, as they lie, and only
from the first key to the last that a query may attend to: both are read on the device, so that a CUDA graph of a step
serves rows of any length up to the capacity of their buffers, and costs what the keys that are there cost. With few
rows the keys of one are divided among several programs (Flash-Decoding, Dao et al. 2023). The sources are
`kernels/query_attention.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.attention import AttentionCall
from weft.ops.attention import joined as sum_of
from weft.ops.forms import Form
from weft.ops.operator import operator
from weft.ops.triton.library import devices, interpreted, kernels, offer, on_device_of, why_not

SHORTEST = 256
"""The fewest keys that a program of several of a row has."""
PROGRAMS = 264
"""Programs for which the keys of a row are divided: two for each multiprocessor of an H100."""
MOST = 64
"""Most programs of a row."""
KEYS = 64
"""Keys of a tile."""
LARGEST = 1024
"""Bytes of a key and a value whose tiles shared memory holds: 152 of 227 KiB on an H100, in float32."""


def keys_of_a_program(rows: int, key_heads: int, keys: int) -> int:
    """The number of keys that one program has; all of a row's where the other rows and heads are enough programs."""
    wanted = min(MOST, -(-PROGRAMS // (rows * key_heads)))
    return max(SHORTEST, -(-keys // (wanted * KEYS)) * KEYS)


def _power(size: int) -> int:
    """The side of a tile; the hardware's products have sides of 16 at least."""
    return max(16, 1 << (size - 1).bit_length())


def _strides(x: Tensor | None) -> tuple[int, int, int]:
    """The strides of row, head and key of a tensor [#B,#H,1,S]."""
    return (0, 0, 0) if x is None else (x.stride(0) if x.shape[0] > 1 else 0, x.stride(1) if x.shape[1] > 1 else 0,
                                        x.stride(3))


def run(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, start: Tensor | None, stop: Tensor | None,
        bias: Tensor | None, sinks: Tensor | None, scale: float, softcap: float) -> Tensor:
    """The kernel of `query_attention`."""
    (rows, _, heads, size), (keys, key_heads), width = q.shape, k.shape[1:3], v.shape[3]
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    y = q.new_empty(rows, 1, heads, width)
    per = keys_of_a_program(rows, key_heads, keys)
    splits = -(-keys // per)
    held = (rows, heads, splits)
    sums, most, total = (y, y, y) if splits == 1 else (
        torch.empty(*held, width, dtype=torch.float32, device=q.device),
        *(torch.empty(held, dtype=torch.float32, device=q.device) for _ in range(2)))
    source, wide = kernels("query_attention"), _power(width)
    sizes = {"SINKS": sinks is not None, "F": wide}
    with on_device_of(q):
        source.partial[rows, key_heads, splits](
            q, k, v, None if allowed is None else allowed.view(torch.uint8), bias, sinks, start, stop, y, sums, most,
            total, keys, heads // key_heads, size, width, per, q.stride(0), q.stride(2), k.stride(0), k.stride(1),
            k.stride(2), v.stride(0), v.stride(1), v.stride(2), *_strides(allowed), *_strides(bias), scale, softcap,
            heads, RANGED=start is not None, ALLOWED=allowed is not None, BIAS=bias is not None, CAPPED=softcap > 0,
            SPLITS=splits, PRODUCTS=_products(q), PRECISION="ieee", G=_power(heads // key_heads), S=KEYS,
            E=_power(size), num_warps=4, **sizes)
        if splits > 1:
            source.joined[rows * heads,](sums, most, total, sinks, y, heads, splits, width,
                                         N=1 << (splits - 1).bit_length(), num_warps=4, **sizes)
    return y


def _products(q: Tensor) -> Any:
    """The dtype of the factors of products; the interpreter takes bfloat16 for whole numbers."""
    language = kernels("query_attention").tl
    known = {torch.bfloat16: language.bfloat16, torch.float16: language.float16}
    return language.float32 if interpreted() else known.get(q.dtype, language.float32)


def _shape(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, start: Tensor | None, stop: Tensor | None,
           bias: Tensor | None, sinks: Tensor | None, scale: float, softcap: float) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


query_attention = operator("triton_query_attention", run, _shape)
"""softmax(cap(scale q.k + bias), masked) v for one query: q [B,1,H,E], k [B,S,K,E], v [B,S,K,F], where it may attend,
and what is added to its scores, [#B,#H,1,S]; ``start`` and ``stop`` [B]: the first key of each row that is visible to a
head, and one behind the last; ``softcap`` 0 for none."""


def attention_flops(q: Tensor, k: Tensor, v: Tensor, *_: object) -> int:
    """Operations of scores and of sums of values, over all stored keys."""
    batch, heads, size = q.shape[0], q.shape[2], q.shape[3]
    return 2 * batch * heads * k.shape[1] * (size + v.shape[3])


def _range(allowed: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The first key of each row that a head may attend to and one behind the last, [B]; an empty range where there is
    none. Layers that share a mask share these too: a tape and a compiler see that the calls are equal."""
    visible, keys = allowed.any(1)[:, 0], allowed.shape[3]
    order = torch.arange(keys, device=allowed.device)
    start, stop = torch.where(visible, order, keys).amin(-1), torch.where(visible, order + 1, 0).amax(-1)
    return start.expand(rows), stop.expand(rows)


def _one_query(call: AttentionCall) -> Tensor:
    allowed = None if call.visible.causal or call.visible.everything else call.visible.dense()
    start, stop = (None, None) if allowed is None else _range(allowed, len(call.q))
    y: Tensor = query_attention(call.q, call.k, call.v, allowed, start, stop, sum_of(call.terms), call.sinks,
                                call.scale, call.softcap or 0.0)
    return y


def _hindrance(call: AttentionCall) -> str | None:
    """Why the kernel for one query cannot serve."""
    if call.q.shape[1] != 1:
        return "it takes a single query"
    if call.dropout or call.needs_weights():
        return "it has no dropout and returns no weights"
    if call.sinks is not None and call.sinks.dim() > 1:
        return "its sinks are the same for all queries"
    if call.k.dtype is not call.q.dtype or call.v.dtype is not call.q.dtype:
        return "its tensors are of several dtypes"
    if not (call.q.numel() and call.k.numel() and call.v.numel()):
        return "there are no queries or no keys"
    if (_power(call.q.shape[3]) + _power(call.v.shape[3])) * call.q.element_size() > LARGEST:
        return "its heads are too large for the tiles"
    return why_not()


FORM: Form[AttentionCall, Tensor] = Form(
    "triton_query", _one_query, "one query for each head, by Triton", devices=devices(),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}), gradients="without", transformed=False,
    serves=_hindrance, offer=offer(), flops={"weft.triton_query_attention": attention_flops},
    known_as=("flash_decoding", "split_k", "cuda"))
"""Of `weft.ops.attention`."""
