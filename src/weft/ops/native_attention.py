"""Attention in C: softmax over the keys of an interval, forward and backward, in float32 on a processor. A call in
bfloat16 is widened, and its results are rounded once.

Scores are computed by tiles that stay in the processor's cache (Dao et al. 2022, algorithms 1 and 4), only where the
interval of a query holds keys, so that time grows with the tokens times the width of a window. A bias by distance is
one number for each distance and head, read where the tile lies. Besides the result the
forward pass keeps one number for each query and head, the logarithm of the sum of its exponentials; the backward pass
computes the weights again. The sources are `weft/ops/native/attention.c` and what it includes.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.masks.visible import KeyInterval
from weft.ops.attention import AttentionCall, ScoreTerm
from weft.ops.forms import Form
from weft.ops.native.library import ADDRESS, COUNT, run, structure, threads, why_not
from weft.ops.operator import again, differentiate, operator

BLOCK = 64
"""Queries, and keys, of a tile."""
LOG2_E = math.log2(math.e)
LARGEST = 256
"""Features of a head for which a tile in C fits into a cache."""
FEW_QUERIES = 64
"""Queries from which tiles in C pay. With 48 queries PyTorch's kernel takes 0.9 of their time, with 64 as long and with
96 1.2 times as long (forward and backward; AMD EPYC, Zen 3); on an Intel Xeon the border was 65."""
BEYOND = 128
"""Numbers on either side of a bias that a tile may read; as in native/attention.h."""


_AttentionCall = structure(
    (ADDRESS, "q k v"), (3 * COUNT, "q_at k_at v_at"), (ADDRESS, "y logs dy dq dk dv start stop bias dbias"),
    (3 * COUNT, "bias_at"), (ADDRESS, "sinks"),
    (COUNT, "batch queries keys heads groups size value_size offset back ahead lengths"),
    (ctypes.c_double, "scale"), (COUNT, "next"))
"""`Attention` of native/attention.h."""


def native(q: Float[Tensor, "B T H E"], k: Float[Tensor, "B S K E"], v: Float[Tensor, "B S K F"], *,
           interval: KeyInterval, scale: float, terms: tuple[ScoreTerm, ...] = (),
           sinks: Float[Tensor, " H"] | None = None) -> Float[Tensor, "B T H F"]:
    """The attention of a call whose score terms depend on distance alone.

    Args:
        interval: the keys that each query attends to.
        terms: added to the scaled scores; each is `ScoreTerm.by_distance`.
        sinks: for each head the score of one more key, which has no value.
    """
    back, ahead = interval.offset + q.shape[1] - 1, k.shape[1] - 1
    back, ahead = (most if bound is None else min(bound, most) for bound, most in
                   ((interval.back, back), (interval.ahead, ahead)))
    start, stop = (None if x is None else x.expand(q.shape[0], q.shape[1]).to(torch.int32).contiguous()
                   for x in (interval.start, interval.stop))
    own = None if sinks is None else sinks.float()
    y: Tensor = _FORWARD(q, k, v, _by_distance(terms, back, ahead), own, start, stop, scale, interval.offset, back,
                         ahead)[0]
    return y


def _by_distance(terms: tuple[ScoreTerm, ...], back: int, ahead: int) -> Float[Tensor, "#B #H L"] | None:
    """The sum of terms: for the distances from ``ahead`` keys after a query's own to ``back`` before it, in order."""
    found = [term.distances(-back, back + ahead + 1) for term in terms]
    return sum(found[1:], found[0]).float().flip(-1) if found else None


def _call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, offset: int, back: int,
          ahead: int) -> Any:
    """The arguments of the C functions; features of q, k and v are adjacent, and ``bias`` is `_widened`."""
    call = _AttentionCall(batch=len(q), queries=q.shape[1], keys=k.shape[1], heads=q.shape[2], groups=k.shape[2],
                          size=q.shape[3], value_size=v.shape[3], offset=offset, back=back, ahead=ahead, scale=scale)
    for name, x in (("q", q), ("k", k), ("v", v)):
        setattr(call, name, x.data_ptr())
        setattr(call, f"{name}_at", (3 * COUNT)(*x.stride()[:3]))
    if bias is not None:
        call.bias, call.lengths = bias.data_ptr() + BEYOND * bias.element_size(), bias.shape[2]
        steps = (stride if size > 1 else 0 for size, stride in zip(bias.shape[:2], bias.stride()[:2], strict=True))
        call.bias_at[0], call.bias_at[2] = steps
    return call


def _widened(bias: Tensor | None) -> Tensor | None:
    """A bias by distance in units of log 2, with room on both sides for tiles that reach beyond a query's interval."""
    return None if bias is None else F.pad(bias.detach() * LOG2_E, (BEYOND, BEYOND))


def _wide(x: Tensor) -> Tensor:
    """In float32, with adjacent features."""
    wide = x.float()
    return wide if wide.stride(-1) == 1 else wide.contiguous()


_UNFINISHED = "attention in C could not reserve the memory of a tile. Give it fewer threads or a smaller batch."


def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, start: Tensor | None,
             stop: Tensor | None, scale: float, offset: int, back: int, ahead: int) -> tuple[Tensor, Tensor]:
    """The result, and for each row, head and query the binary logarithm of the sum of its exponentials."""
    narrow, wide = q.dtype, _widened(bias)
    q, k, v = _wide(q), _wide(k), _wide(v)
    y, logs = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[0], q.shape[2], q.shape[1])
    pieces = q.shape[0] * q.shape[2] * -(-q.shape[1] // BLOCK)
    run("weft_attention_forward", _call(q, k, v, wide, scale, offset, back, ahead), pieces, _UNFINISHED, start=start,
        stop=stop, y=y, logs=logs, sinks=None if sinks is None else sinks * LOG2_E)
    return y.to(narrow), logs


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    logs = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
    return q.new_empty(*q.shape[:3], v.shape[3]), logs


def _backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None,
              start: Tensor | None, stop: Tensor | None, y: Tensor, logs: Tensor, learns: bool, scale: float,
              offset: int, back: int, ahead: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, of a learned bias and of sinks; empty ones where there are none."""
    narrow, wide = q.dtype, _widened(bias)
    q, k, v, y, dy = _wide(q), _wide(k), _wide(v), y.float(), dy.float()
    dq, dk, dv = q.new_empty(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    slopes = q.new_zeros(q.shape[0], q.shape[2], wide.shape[2]) if learns and wide is not None else None
    run("weft_attention_backward", _call(q, k, v, wide, scale, offset, back, ahead), k.shape[0] * k.shape[2],
        _UNFINISHED, start=start, stop=stop, y=y, logs=logs, dy=dy, dq=dq, dk=dk, dv=dv, dbias=slopes)
    dbias = q.new_empty(0) if slopes is None or bias is None else slopes[..., BEYOND:-BEYOND].sum_to_size(bias.shape)
    return dq.to(narrow), dk.to(narrow), dv.to(narrow), dbias, _to_sinks(dy, y, logs, sinks)


def _to_sinks(dy: Tensor, y: Tensor, logs: Tensor, sinks: Tensor | None) -> Tensor:
    """[H]: d(weight_j)/d(sink) = -weight_j weight_sink, and the weights times their slopes sum to y dy."""
    if sinks is None:
        return dy.new_empty(0)
    weight = torch.exp2(sinks[:, None] * LOG2_E - logs)
    return -(weight * (dy * y).sum(-1).transpose(1, 2)).sum((0, 2))


def _backward_shapes(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None,
                     start: Tensor | None, stop: Tensor | None, y: Tensor, logs: Tensor, learns: bool,
                     *_: Any) -> tuple[Tensor, ...]:
    return (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape),
            q.new_empty(bias.shape if learns and bias is not None else 0, dtype=torch.float32),
            q.new_empty(0 if sinks is None else sinks.shape, dtype=torch.float32))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.rest = inputs[7:]


def _gradient(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, bias, sinks, start, stop, y, logs = ctx.saved_tensors
    rest: tuple[None, ...] = (None,) * (2 + len(ctx.rest))
    if dy is None:
        return None, None, None, None, None, *rest
    if torch.is_grad_enabled():  # the backward pass is differentiated itself: through plain operators
        def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None) -> Tensor:
            return _plain(q, k, v, bias, sinks, start, stop, *ctx.rest)

        return *again(plain, (q, k, v, bias, sinks), dy), *rest
    learns = ctx.needs_input_grad[3]
    dq, dk, dv, dbias, dsinks = _BACKWARD(dy, q, k, v, bias, sinks, start, stop, y, logs, learns, *ctx.rest)
    return dq, dk, dv, dbias if learns else None, None if sinks is None else dsinks, *rest


def _plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None, start: Tensor | None,
           stop: Tensor | None, scale: float, offset: int, back: int, ahead: int) -> Tensor:
    """The same by PyTorch's operators, with all scores."""
    key = torch.arange(k.shape[1])
    own = offset + torch.arange(q.shape[1])[:, None]
    allowed = ((key >= own - back) & (key <= own + ahead))[None]
    if start is not None:
        allowed = allowed & (key >= start[..., None])
    if stop is not None:
        allowed = allowed & (key <= stop[..., None])
    narrow = q.dtype
    q, k, v = q.float(), k.float(), v.float()
    by_group = q.unflatten(2, (k.shape[2], -1))
    scores = torch.einsum("btkge,bske->bkgts", by_group, k).flatten(1, 2) * scale
    if bias is not None:
        scores = scores + bias[..., (own - key + ahead).clamp(0, back + ahead)]
    hidden = ~allowed[:, None]
    scores = scores.masked_fill(hidden, -torch.inf).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    weights = scores.softmax(-1)[..., : k.shape[1]].masked_fill(hidden, 0.0).unflatten(1, (k.shape[2], -1))
    return torch.einsum("bkgts,bskf->btkgf", weights, v).flatten(2, 3).to(narrow)


_FORWARD = operator("native_attention", _forward, _forward_shapes)
_BACKWARD = operator("native_attention_backward", _backward, _backward_shapes)
differentiate("native_attention", _gradient, _save)


def native_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """q.k and weights.v, as if over all pairs."""
    return _products(q, q.shape[1] * k.shape[1], q.shape[3] + v.shape[3])


def native_backward_flops(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """Scores again, then gradients of v, weights, q and k, as if over all pairs."""
    return _products(q, q.shape[1] * k.shape[1], 3 * q.shape[3] + 2 * v.shape[3])


def native_skipped(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """The number of these operations for keys outside the intervals of a block of queries, which are not done."""
    return _products(q, _outside(q, k, *rest[-3:]), q.shape[3] + v.shape[3])


def native_backward_skipped(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
    """The number of the backward pass's operations for keys outside the intervals, which are not done."""
    return _products(q, _outside(q, k, *rest[-3:]), 3 * q.shape[3] + 2 * v.shape[3])


def _products(q: Tensor, pairs: int, width: int) -> int:
    return 2 * q.shape[0] * q.shape[2] * width * pairs


def _outside(q: Tensor, k: Tensor, offset: int, back: int, ahead: int) -> int:
    """Pairs of a query and a key that is in no interval of the query's block, documents and padding aside."""
    steps, keys, inside = q.shape[1], k.shape[1], 0
    for first in range(0, steps, BLOCK):
        rows = min(BLOCK, steps - first)
        least, last = max(0, offset + first - back), min(keys - 1, offset + first + rows - 1 + ahead)
        inside += rows * max(0, last - least + 1)
    return steps * keys - inside


def _in_c(call: AttentionCall) -> Tensor:
    interval = call.visible.interval()
    assert interval is not None, "the form serves calls whose queries attend to consecutive keys"
    return native(call.q, call.k, call.v, interval=interval, scale=call.scale, terms=call.terms, sinks=call.sinks)


def _hindrance(call: AttentionCall) -> str | None:
    """Why the code in C cannot serve."""
    if call.needs_weights():
        return "it returns no weights"
    if call.softcap is not None or call.dropout:
        return "it has no softcap and no dropout"
    if call.sinks is not None and call.sinks.dim() > 1:
        return "its sinks differ by query"
    if not all(term.by_distance for term in call.terms):
        return "a bias depends on more than distance"
    if max(call.q.shape[3], call.v.shape[3]) > LARGEST:
        return f"a head has more than {LARGEST} features"
    if not (call.q.numel() and call.k.numel() and call.v.numel()):
        return "there are no queries or no keys"
    if call.k.dtype != call.q.dtype or call.v.dtype != call.q.dtype:
        return "its tensors are of several dtypes"
    return "keys may not be consecutive" if call.visible.interval() is None else why_not()


def _slow(call: AttentionCall) -> str | None:
    """Why the code in C does not pay."""
    if call.q.shape[1] < FEW_QUERIES:
        return "too few queries"
    if torch.is_grad_enabled() and call.k.shape[0] * call.k.shape[2] < threads():
        return "it has fewer key heads than threads"
    return None


FORM: Form[AttentionCall, Tensor] = Form(
    "native", _in_c, "tiles in C, which stay in the cache", devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32, torch.bfloat16}), transformed=False, serves=_hindrance, worth=_slow,
    flops={"weft.native_attention": native_flops, "weft.native_attention_backward": native_backward_flops},
    known_as=("c", "cpp", "kernel"))
"""Of `weft.ops.attention`."""
