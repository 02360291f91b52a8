"""RWKV-4's attention without queries: for each channel a mean of values whose weights decay with distance.

    y_t = (sum_{s<t} e^{(t-1-s) w + k_s} v_s + e^{u + k_t} v_t) / (sum_{s<t} e^{(t-1-s) w + k_s} + e^{u + k_t})

with the logarithm w < 0 of a decay and a bonus u of the token itself, each one number for a channel (Peng et al. 2023,
equation 16 of section 3.1 and appendix D). Keys have no bound, so both sums are kept divided by e^m, where m is the
largest exponent among the terms of the state, and no exponential here exceeds 1. The state is (numerator, denominator,
m). Only the sums times e^m have a meaning, so m is a constant to gradients: those of the two sums alone are the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.native.library import why_not
from weft.ops.native_wkv import native, shapes
from weft.ops.operator import differentiable, widen
from weft.ops.wkv_chunks import CHUNK, EMPTY, backward, forward

Mixed = tuple[Tensor, Tensor]
"""Means [B,T,D] and the state after the last token, [B,3,D]."""


class WKVCall(NamedTuple):
    """One call of at least one token, all in one dtype.

    Attributes:
        decay: w, at most 0.
        before: numerator, denominator and m of the state before the first token; 0, 0 and `EMPTY` for an empty one.
        starts: where a document begins, before which the state is emptied; only tokens that are taken.
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
    """

    k: Float[Tensor, "B T D"]
    v: Float[Tensor, "B T D"]
    decay: Float[Tensor, " D"]
    bonus: Float[Tensor, " D"]
    before: Float[Tensor, "B 3 D"]
    starts: Bool[Tensor, "B T"] | None
    valid: Bool[Tensor, "B T"] | None


def wkv(k: Float[Tensor, "B T D"], v: Float[Tensor, "B T D"], decay: Float[Tensor, " D"], bonus: Float[Tensor, " D"],
        before: Float[Tensor, "B 3 D"] | None = None, starts: Bool[Tensor, "B T"] | None = None,
        valid: Bool[Tensor, "B T"] | None = None) -> Mixed:
    """The means and the state after the chunk, in float32 or better; the arguments are those of `WKVCall`, with an
    empty state for None."""
    k, v, decay, bonus = widen(k), widen(v), widen(decay), widen(bonus)
    before = empty_state(k) if before is None else before.to(k.dtype)
    return WKV(WKVCall(k, v, decay, bonus, before, starts, valid))


def empty_state(k: Float[Tensor, "B T D"]) -> Float[Tensor, "B 3 D"]:
    """The state before the first token."""
    sums = k.new_zeros(k.shape[0], 2, k.shape[2])
    return torch.cat([sums, sums.new_full((k.shape[0], 1, k.shape[2]), EMPTY)], 1)


def _by_steps(call: WKVCall) -> Mixed:
    k, v, decay, bonus, before, starts, valid = call
    top, over, under = before[:, 2].detach(), before[:, 0], before[:, 1]
    outputs = []
    for step in range(k.shape[1]):
        key, value = k[:, step], v[:, step]
        if starts is not None:
            new = starts[:, step, None]
            top, over, under = top.masked_fill(new, EMPTY), over.masked_fill(new, 0), under.masked_fill(new, 0)
        own = bonus + key
        most = torch.maximum(top, own).detach()
        past, now = (top - most).exp(), (own - most).exp()
        outputs.append((past * over + now * value) / (past * under + now))
        most = torch.maximum(top + decay, key).detach()
        past, now = (top + decay - most).exp(), (key - most).exp()
        after = most, past * over + now * value, past * under + now
        if valid is not None:
            after = tuple(torch.where(valid[:, step, None], new, old)  # type: ignore[assignment]
                          for new, old in zip(after, (top, over, under), strict=True))
        top, over, under = after
    return torch.stack(outputs, 1), torch.stack([over, under, top], 1)


def _operator(call: WKVCall) -> Mixed:
    found: Mixed = _forward(*call)
    return found


def _native(call: WKVCall) -> Mixed:
    return native(*call)


def _run(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
         valid: Tensor | None) -> tuple[Tensor, Tensor]:
    return forward(k, v, decay, bonus, before, starts, valid)


def _run_backward(dy: Tensor, dafter: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor,
                  starts: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return backward(dy, dafter, k, v, decay, bonus, before, starts, valid)


_forward = differentiable("wkv", _run, shapes, _run_backward, forward, 5)


def _flops(*_: Any) -> int:
    """None are counted: all of it is element by element, as in a norm."""
    return 0


def _single(call: WKVCall) -> str | None:
    return "a single token" if call.k.shape[1] == 1 else None


def _without_library(call: WKVCall) -> str | None:
    return why_not()


def _examples(make: Make) -> Iterator[WKVCall]:
    for steps in (1, 7, 2 * CHUNK + 5):
        k, v, decay, bonus = make(2, steps, 5), make(2, steps, 5), -make(5).square(), make(5)
        sums, m = make(2, 2, 5), make(2, 1, 5).detach()
        before = torch.cat([sums[:, :1], sums[:, 1:].square() + 1, m], 1)
        yield WKVCall(3 * k, v, decay, bonus, before, None, None)
        valid = torch.arange(steps) < torch.tensor([[steps], [steps // 2]])
        starts = (torch.arange(steps) % 6 == 3) & valid
        yield WKVCall(3 * k, v, decay, bonus, before, starts, valid)
    yield WKVCall(100 * k, v, decay, bonus, empty_state(k), None, None)


WKV = OPERATIONS.add(Operation(
    "wkv", "RWKV-4's decaying mean over a chunk",
    Form(REFERENCE, _by_steps, "step by step", known_as=("steps", "step")),
    Form("native", _native, "channels side by side in C", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32}), transformed=False, serves=_without_library, worth=_single,
         flops={"weft.native_wkv": _flops, "weft.native_wkv_backward": _flops}, known_as=("c", "cpp", "kernel")),
    LateForm("triton", "weft.ops.triton.wkv.FORM", "cuda"),
    Form("operator", _operator, "chunks of 32 tokens, as one operator", transformed=False, worth=_single,
         flops={"weft.wkv": _flops, "weft.wkv_backward": _flops}, known_as=("chunks",)),
    subject="k", examples=_examples, known_as=("rwkv", "rwkv4", "aft")))
