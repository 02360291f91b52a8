"""The delta rule by Triton, forward and backward, in float32 on an NVIDIA GPU.

For DeltaNet, Gated DeltaNet, Kimi Delta Attention and RWKV-7: any a and b, no decays, one for each head and token or
one for each feature. The state before each chunk of tokens is there while a pass runs, and so is, in the backward pass,
its gradient: E F numbers for each chunk and head. Between the passes nothing is kept but the arguments. Every sum is
taken by one program, in one order, so that a call gives the same bits every time. The sources are
`kernels/delta_rule.py` and, beside it, `delta_rule_slopes.py` and `delta_rule_near.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from weft.ops.delta_rule import DeltaRuleCall, Recurred
from weft.ops.delta_rule_chunks import forward as plain
from weft.ops.delta_rule_chunks import products
from weft.ops.forms import Form
from weft.ops.native_delta_rule import shapes
from weft.ops.operator import differentiable
from weft.ops.triton.library import devices, kernels, offer, on_device_of, why_not
from weft.ops.triton.linear_recurrence import WIDE

MOST_FEATURES = 256
"""Of a key: those of a state stay in the registers of one program."""

Slopes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Gradients of q, k, v, a, b, the logarithm of the decay (empty where there is none) and the state before."""


@final
class DeltaRulePlan(NamedTuple):
    """How the work of a call is cut.

    Attributes:
        chunk: tokens of a chunk: 16, 32 or 64.
        side: of the largest tile of features, a power of two of at least 16.
        columns: of the tile of a state that one program takes from chunk to chunk, likewise.
        warps: of a program.
        precision: of products, as `triton.language.dot` names it.
    """

    chunk: int
    side: int = 64
    columns: int = 32
    warps: int = 4
    precision: str = "tf32x3"

    def stages(self, wide: int) -> int:
        """Chunks of which `states` has loads under way at once, for so many features of a key: as many as fit into the
        shared memory, where products of one TF32 each read them."""
        return 2 if wide * self.chunk <= (8192 if self.precision == "tf32x3" else 4096) else 1

    def tile(self, size: int) -> int:
        """The side of a tile for so many features; the hardware's products have sides of 16 at least."""
        return min(_padded(size), self.side)


class _Launch(NamedTuple):
    """One call's sizes.

    Attributes:
        sizes: those that every kernel is compiled for.
        cut: sizes of the kernels that take all chunks at once.
        decays: the strides of the logarithms, by row and by token.
    """

    rows: int
    steps: int
    heads: int
    keys: int
    values: int
    chunks: int
    by: int
    plan: DeltaRulePlan
    sizes: dict[str, Any]
    cut: dict[str, Any]
    decays: tuple[int, int]

    def grid(self, size: int = 0) -> tuple[int, int]:
        """Programs by chunks and by tiles of so many features."""
        return self.rows * self.heads * self.chunks, -(-size // self.plan.tile(size)) if size else 1

    def near(self) -> dict[str, Any]:
        """Sizes of the kernels that take the tokens of one run."""
        return {"keys": self.keys, "CHUNK": self.plan.chunk, "BE": min(self.plan.tile(self.keys), 32), "num_warps": 4}


class _Chunks(NamedTuple):
    """Tensors of a pass, see the kernels."""

    near: Tensor | None
    inverse: Tensor | None
    read: Tensor
    over: Tensor
    kept: Tensor
    after: Tensor


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _launch(q: Tensor, v: Tensor, log_decay: Tensor | None, plan: DeltaRulePlan) -> _Launch:
    (rows, steps, heads, keys), values = q.shape, v.shape[3]
    by = 0 if log_decay is None else 1 if log_decay.shape[3] == 1 else 2
    row, step = (0, 0) if log_decay is None else (
        stride if size > 1 else 0 for size, stride in zip(log_decay.shape[:2], log_decay.stride()[:2], strict=True))
    sizes = {"keys": keys, "values": values, "BY": by, "PRECISION": plan.precision, "CHUNK": plan.chunk,
             "num_warps": plan.warps, "num_stages": 2}
    cut = {**sizes, "BE": plan.tile(keys), "BF": plan.tile(values), "LEVELS": (plan.chunk // 16).bit_length() - 1}
    return _Launch(rows, steps, heads, keys, values, -(-steps // plan.chunk), by, plan, sizes, cut, (row, step))


def _states(at: _Launch, w: Tensor, y: Tensor, x: Tensor, z: Tensor, v: Tensor, of: tuple[Tensor, Tensor], over: Tensor,
            before: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """The state before each chunk, [B,H,chunks,E,F], and after the last; ``y`` becomes what is read."""
    kept = before.new_empty(at.rows, at.heads, at.chunks, at.keys, at.values)
    after, columns, wide = torch.empty_like(before), min(_padded(at.values), at.plan.columns), _padded(at.keys)
    kernels("delta_rule").states[at.rows * at.heads, -(-at.values // columns)](
        w, y, x, z, v, *of, over, before, kept, after, at.steps, at.heads, REVERSE=reverse, WIDE=wide, BF=columns,
        **{**at.sizes, "num_stages": at.plan.stages(wide)})
    return kept, after


def _passed(at: _Launch, given: DeltaRuleCall, keeps: bool) -> _Chunks:
    """Vectors that the tokens read, and the states, from the first chunk to the last."""
    q, k, v, a, b, log, before = given
    near = None
    if at.by == 2:
        near = q.new_empty(at.rows, at.steps, at.heads, 4, 16)
        kernels("delta_rule_near").scores[at.grid()](
            q, k, a, b, log, near, at.steps, at.heads, *at.decays, **at.near())
    w, read = torch.empty_like(a), torch.empty_like(v)
    inverse = q.new_empty(at.rows, at.heads, at.chunks, at.plan.chunk, at.plan.chunk) if keeps else None
    over = q.new_empty(at.rows, at.heads, at.chunks, at.keys if at.by == 2 else 1)
    late, early = (torch.empty_like(k), torch.empty_like(k)) if at.by == 2 else (k.new_empty(k.shape[:3]), k)
    kernels("delta_rule").solve[at.grid()](
        k, v, a, b, log, near, w, read, inverse, over, late, early, at.steps, at.heads, *at.decays, KEEPS=keeps,
        **at.cut)
    x, z = (late, early) if at.by == 2 else (b, k)
    kept, after = _states(at, w, read, x, z, v, (late, late), over, before, False)
    return _Chunks(near, inverse, read, over, kept, after)


def run_forward(given: DeltaRuleCall, plan: DeltaRulePlan) -> tuple[Tensor, Tensor]:
    """The forward operator, by a plan."""
    q, k, v, _, b, log, _ = given = _contiguous(given)
    at, y = _launch(q, v, log, plan), torch.empty_like(v)
    with on_device_of(q):
        passed = _passed(at, given, keeps=False)
        kernels("delta_rule").outputs[at.grid(at.values)](
            q, k, v, b, passed.read, log, passed.near, passed.kept, y, at.steps, at.heads, *at.decays, **at.cut)
    return y, passed.after


def _back(at: _Launch, given: DeltaRuleCall, passed: _Chunks, do: Tensor, after: Tensor) -> tuple[Tensor, Tensor,
                                                                                                 Tensor]:
    """Gradients of what the tokens read, of the state after each chunk and of the state before the first."""
    q, _, _, a, b, log, _ = given
    w, read = torch.empty_like(a), torch.empty_like(do)
    until, into = (torch.empty_like(a if at.by == 2 else a[..., 0], memory_format=torch.contiguous_format)
                   for _ in range(2))
    kernels("delta_rule_slopes").solve_backward[at.grid()](
        q, a, b, log, passed.near, passed.inverse, do, w, read, until, into, at.steps, at.heads, *at.decays, **at.cut)
    x, z = (until, into) if at.by == 2 else (a, q)
    leaving, before = _states(at, w, read, x, z, do, (until, into), passed.over, after, True)
    return read, leaving, before


def run_backward(do: Tensor, dafter: Tensor, given: DeltaRuleCall, plan: DeltaRulePlan) -> Slopes:
    """The backward operator, by a plan."""
    q, k, v, a, b, log, _ = given = _contiguous(given)
    at, do, dafter = _launch(q, v, log, plan), do.contiguous(), dafter.contiguous()
    dq, dk, da, db, dv = (torch.empty_like(x) for x in (q, k, a, b, v))
    tiles = at.grid(at.keys)
    dlog = q.new_empty((0,) if log is None else (*q.shape[:3], at.keys if at.by == 2 else tiles[1]))
    common = (at.steps, at.heads, *at.decays)
    with on_device_of(q):
        passed = _passed(at, given, keeps=True)
        read, leaving, before = _back(at, given, passed, do, dafter)
        kernels("delta_rule_slopes").value_slopes[at.grid(at.values)](
            q, k, a, log, passed.near, do, read, leaving, dv, *common, **at.cut)
        near = None if passed.near is None else torch.empty_like(passed.near)
        squares = q.new_empty(*tiles[:1], 4, plan.chunk, plan.chunk)
        kernels("delta_rule_slopes").score_slopes[tiles[0], 2](
            v, passed.read, log, near, do, read, squares, *common, BF=at.cut["BF"], **at.sizes)
        kernels("delta_rule_slopes").reader_slopes[tiles](
            q, k, a, b, log, squares, do, read, passed.kept, leaving, dq, da, dlog, *common, **at.cut)
        kernels("delta_rule_slopes").writer_slopes[tiles](
            q, k, v, a, b, passed.read, log, squares, leaving, dk, db, dlog, *common, **at.cut)
        if at.by == 2:
            cut = at.near()
            kernels("delta_rule_near").reader_slopes[tiles[0], -(-at.keys // cut["BE"])](
                q, k, a, b, log, near, dq, da, dlog, *common, **cut)
            kernels("delta_rule_near").writer_slopes[tiles[0], -(-at.keys // cut["BE"])](
                q, k, a, b, log, near, dk, db, dlog, *common, **cut)
    if log is not None:
        dlog = (dlog if at.by == 2 else dlog.sum(3, keepdim=True)).sum_to_size(log.shape)
    return dq, dk, dv, da, db, dlog, before


def _contiguous(given: DeltaRuleCall) -> DeltaRuleCall:
    tensors: list[Any] = [None if x is None else x.contiguous() for x in given]
    return DeltaRuleCall(*tensors)


BY_HEAD, BY_FEATURE, SMALL = DeltaRulePlan(64), DeltaRulePlan(32), DeltaRulePlan(32, side=32)
"""For decays that all features of a key share, or none; for those that differ; and for GPUs of little shared memory."""


def plan_of(log_decay: Tensor | None, before: Tensor) -> DeltaRulePlan:
    """How a call with such decays is cut."""
    if before.is_cuda and torch.cuda.get_device_capability(before.device)[0] not in WIDE:
        return SMALL
    return BY_HEAD if log_decay is None or log_decay.shape[3] == 1 else BY_FEATURE


def _run_forward(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None,
                 before: Tensor) -> tuple[Tensor, Tensor]:
    return run_forward(DeltaRuleCall(q, k, v, a, b, log_decay, before), plan_of(log_decay, before))


def _run_backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
                  log_decay: Tensor | None, before: Tensor) -> Slopes:
    return run_backward(grad, grad_after, DeltaRuleCall(q, k, v, a, b, log_decay, before), plan_of(log_decay, before))


_forward = differentiable("triton_delta_rule", _run_forward, shapes, _run_backward, plain, 7)


def _delta_rule(call: DeltaRuleCall) -> Recurred:
    found: Recurred = _forward(*call)
    return found


def _flops(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None, before: Tensor) -> int:
    return products(v.shape, k.shape[3], log_decay is not None and log_decay.shape[3] > 1, slopes=False)


def _backward_flops(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
                    log_decay: Tensor | None, before: Tensor) -> int:
    return products(v.shape, k.shape[3], log_decay is not None and log_decay.shape[3] > 1, slopes=True)


def _hindrance(call: DeltaRuleCall) -> str | None:
    """Why Triton cannot serve."""
    if not (call.q.numel() and call.v.numel()):
        return "there are no rows or no features"
    if call.q.shape[3] > MOST_FEATURES:
        return f"a key has more than {MOST_FEATURES} features"
    if any(each is not None and each.dtype != call.q.dtype for each in call):
        return "its tensors are of several dtypes"
    return why_not()


FORM: Form[DeltaRuleCall, Recurred] = Form(
    "triton", _delta_rule, "chunks of 32 or 64 tokens by Triton", devices=devices(), dtypes=frozenset({torch.float32}),
    transformed=False, serves=_hindrance, offer=offer(),
    flops={"weft.triton_delta_rule": _flops, "weft.triton_delta_rule_backward": _backward_flops},
    known_as=("cuda", "gpu"))
"""Of `weft.ops.delta_rule`."""
