"""Attention of one query for each head over stored keys, in C: what a step of decoding does with its cache.

Query heads that share a key head are taken together, so that its keys and values are read once, as they lie, and only
from the first key to the last that a query may attend to. Scores, weights and sums are in float32. The sources are
`weft/ops/native/query.c` and what it includes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from weft.ops.attention import AttentionCall, beyond_library
from weft.ops.few_rows import functions, unavailable
from weft.ops.forms import Form, Kernel
from weft.ops.native.library import ADDRESS, COUNT, structure
from weft.ops.native.sequence import CallHeader, NativeCall, alone, failed, written
from weft.ops.native_token import DTYPES
from weft.ops.operator import operator

LONG = 1 << 18
"""Bytes of keys and values from which several threads read them in a call by itself."""


_Query = structure(
    (CallHeader, "shared"), (ctypes.c_int, "narrow"), (COUNT, "batch heads key_heads keys size width together"),
    (COUNT, "q_batch k_batch k_head k_key v_batch v_head v_key a_batch a_head a_key"),
    (ADDRESS, "q k v allowed y"), (ctypes.c_float, "scale"))
"""`Query` of native/token.h."""


def query_in_c(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """The kernel of `native_query`."""
    # In a step of one token each call of Python's counts, so there are as few as can be.
    y = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    q = q if q[:1].is_contiguous() else q.contiguous()
    k, v = k if k.stride(-1) == 1 else k.contiguous(), v if v.stride(-1) == 1 else v.contiguous()
    long = (k.numel() + v.numel()) * k.element_size() >= LONG
    call = _query_of(q, k, v, allowed, scale)
    call.q, call.k, call.v, call.y = q.data_ptr(), k.data_ptr(), v.data_ptr(), y.data_ptr()
    call.allowed = None if allowed is None else allowed.data_ptr()
    status = alone("weft_query_call")(torch.get_num_threads() if long else 1, ctypes.addressof(call))
    if status:
        raise failed(status)
    return y


def _attended_shape(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    return torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)


native_query = operator("native_query", query_in_c, _attended_shape)
"""softmax(scale q.k, masked) v for one query: q [B,1,H,E], k [B,S,K,E], v [B,S,K,F], all in float32 or all in bfloat16,
and where it may attend, [#B,#H,1,S]; zeros where it may attend to nothing."""


@written(native_query)
def _query_call(y: Tensor, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> NativeCall | None:
    if not q[:1].is_contiguous() or any(x.stride(-1) != 1 and x.shape[-1] != 1 for x in (k, v)):
        return None
    return NativeCall("weft_query_call", _query_of(q, k, v, allowed, scale), {"q": q, "k": k, "v": v} | (
        {} if allowed is None else {"allowed": allowed}), ("y",))


def _query_of(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Any:
    """The call without its addresses."""
    batch, _, heads, size = q.shape
    keys, key_heads = k.shape[1:3]
    group = heads // key_heads
    # With fewer key heads than threads each thread takes some of the query heads of one.
    together = group if batch * key_heads >= torch.get_num_threads() else 1
    wide = (0, 0, 0) if allowed is None else [allowed.stride(dim) if allowed.shape[dim] > 1 else 0 for dim in (0, 1, 3)]
    return _Query(CallHeader(pieces=batch * heads // together), q.dtype is torch.bfloat16, batch, heads, key_heads,
                  keys, size, v.shape[3], together, q.stride(0), k.stride(0), k.stride(2), k.stride(1), v.stride(0),
                  v.stride(2), v.stride(1), *wide, scale=scale)


def query_flops(q: Tensor, k: Tensor, v: Tensor, *_: object) -> int:
    """Operations of scores and of sums of values, over all stored keys."""
    batch, heads, size = q.shape[0], q.shape[2], q.shape[3]
    return 2 * batch * heads * k.shape[1] * (size + v.shape[3])


def _one_query(call: AttentionCall) -> Tensor:
    allowed = None if call.visible.causal or call.visible.everything else call.visible.dense()
    y: Tensor = native_query(call.q, call.k, call.v, allowed, call.scale)
    return y


def _one_query_by_addresses(call: AttentionCall) -> Tensor:
    allowed = None if call.visible.causal or call.visible.everything else call.visible.dense()
    return query_in_c(call.q, call.k, call.v, allowed, call.scale)


def _hindrance(call: AttentionCall) -> str | None:
    """Why the code in C for one query cannot serve."""
    if call.q.shape[1] != 1:
        return "it takes a single query"
    if call.terms or call.dropout:
        return "it has no biases and no dropout"
    if call.k.dtype is not call.q.dtype or call.v.dtype is not call.q.dtype:
        return "its tensors are of several dtypes"
    if not (call.q.numel() and call.k.numel() and call.v.numel()):
        return "there are no queries or no keys"
    # `beyond_library` and `unavailable`, where they have nothing against a call, written out for a step of one token.
    usual = call.softcap is None and call.sinks is None and call.value_terms is None and call.record is None
    return None if usual and not isinstance(functions(), str) else beyond_library(call) or unavailable()


FORM: Form[AttentionCall, Tensor] = Form(
    "one_query", _one_query, "one query for each head, in C", devices=frozenset({"cpu"}), dtypes=DTYPES,
    gradients="without", compiled=False, transformed=False, serves=_hindrance, flops={"weft.native_query": query_flops},
    known_as=("native_query", "decode"), kernel=Kernel(_one_query_by_addresses, "q", "k", "v"))
"""Of `weft.ops.attention`."""
