"""RWKV-4's decaying mean by Triton, forward and backward, in float32 on an NVIDIA GPU.

A thread takes one channel of one row through all tokens, or through those of a segment where rows and channels alone
would leave the GPU idle. For the backward pass the forward pass stores the state before every 16 tokens, 3 numbers for
each channel. Uncut, the passes move 12.75 and 20.75 bytes for each number of k: at 3.0 TB/s the least times for 8 rows
of 2,048 tokens are 0.11 and 0.17 ms for 1,536 channels, 0.18 and 0.29 ms for 2,560. Gradients that tokens share are
summed in one order, so that a call gives the same bits every time. The sources are `kernels/wkv.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.operator import differentiable
from weft.ops.triton.diagonal_recurrence import BLOCK, ChannelPlan
from weft.ops.triton.library import devices, interpreted, kernels, offer, on_device_of, why_not
from weft.ops.wkv import Mixed, WKVCall
from weft.ops.wkv_chunks import forward as plain

Slopes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Gradients of k, v, decay, bonus and the state before."""


def plan_of() -> ChannelPlan:
    """That of this process; the interpreter takes as long for many channels as for few."""
    return ChannelPlan(128, 4, programs=1) if interpreted() else ChannelPlan()


def _dense(*tensors: Tensor | None) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]


def _bytes(marks: Tensor | None) -> Tensor | None:
    return None if marks is None else marks.contiguous().view(torch.uint8)


def _marks(starts: Tensor | None, valid: Tensor | None) -> dict[str, Any]:
    return {"starts": _bytes(starts), "valid": _bytes(valid), "STARTS": starts is not None, "VALID": valid is not None}


def run_forward(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
                valid: Tensor | None, keeps: bool, plan: ChannelPlan) -> tuple[Tensor, Tensor, Tensor]:
    """The forward operator, by a plan."""
    k, v, decay, bonus, before = _dense(k, v, decay, bonus, before)
    y, after, kept = _shapes(k, v, decay, bonus, before, starts, valid, keeps, plan)
    cut, entries, marks = plan.cut(k), before, _marks(starts, valid)
    sizes = {"steps": k.shape[1], "segment": cut[3], "width": k.shape[2]} | marks | plan.sizes()
    with on_device_of(k):
        if cut[2] > 1:
            entries, faded = k.new_empty(cut[2], *before.shape), k.new_empty(cut[2], len(k), k.shape[2])
            kernels("wkv").segments[cut[:3]](k=k, v=v, decay=decay, added=entries, faded=faded, **sizes)
            kernels("wkv").chain[-(-k.shape[2] // BLOCK), len(k)](before, entries, faded, k.shape[2], cut[2],
                                                                  BLOCK=BLOCK)
        kernels("wkv").forward[cut[:3]](k=k, v=v, decay=decay, bonus=bonus, entries=entries, y=y, after=after,
                                        kept=kept, KEEPS=keeps, **sizes)
    return y, after, kept


def run_backward(dy: Tensor, dafter: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, starts: Tensor | None,
                 valid: Tensor | None, kept: Tensor, plan: ChannelPlan) -> Slopes:
    """The backward operator, by a plan."""
    dy, k, v, decay, bonus, kept = _dense(dy, k, v, decay, bonus, kept)
    cut, entries, marks = plan.cut(k), dafter[:, :2].contiguous(), _marks(starts, valid)
    dk, dv, left = torch.empty_like(k), torch.empty_like(k), k.new_empty(cut[2], *entries.shape)
    ddecay, dbonus = (k.new_empty(cut[2], len(k), k.shape[2]) for _ in range(2))
    given = {"dy": dy, "k": k, "v": v, "decay": decay, "bonus": bonus, "kept": kept, "dk": dk, "dv": dv,
             "ddecay": ddecay, "dbonus": dbonus, "steps": k.shape[1], "segment": cut[3], "width": k.shape[2]}
    given |= marks | plan.sizes()
    with on_device_of(k):
        if cut[2] > 1:
            first, entries, factors = entries, torch.empty_like(left), torch.empty_like(left)
            kernels("wkv").backward[cut[:3]](entries=first, left=entries, factors=factors, SLOPES=False, **given)
            kernels("selective_scan").chain[-(-first.numel() // BLOCK),](
                first, entries, factors, first.numel(), cut[2], REVERSE=True, BLOCK=BLOCK)
        kernels("wkv").backward[cut[:3]](entries=entries, left=left, factors=left, SLOPES=True, **given)
    dbefore = torch.cat([left[0], torch.zeros_like(left[0, :, :1])], 1)
    return dk, dv, ddecay.sum((0, 1)), dbonus.sum((0, 1)), dbefore


def _run_forward(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
                 valid: Tensor | None, keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    return run_forward(k, v, decay, bonus, before, starts, valid, keeps, plan_of())


def _shapes(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
            valid: Tensor | None, keeps: bool, plan: ChannelPlan | None = None) -> tuple[Tensor, Tensor, Tensor]:
    tiles = -(-k.shape[1] // (plan or plan_of()).tile)
    return k.new_empty(k.shape), k.new_empty(before.shape), k.new_empty((tiles, *before.shape) if keeps else (0,))


def _run_backward(dy: Tensor, dafter: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor,
                  starts: Tensor | None, valid: Tensor | None, keeps: bool,
                  kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return run_backward(dy, dafter, k, v, decay, bonus, starts, valid, kept, plan_of())


def _plain(*given: Any) -> tuple[Tensor, Tensor]:
    return plain(*given[:-1])


_forward = differentiable("triton_wkv", _run_forward, _shapes, _run_backward, _plain, 5, keeps=True)


def _mean(call: WKVCall) -> Mixed:
    y, after, _ = _forward(*call, torch.is_grad_enabled())
    return y, after


def _hindrance(call: WKVCall) -> str | None:
    """Why Triton cannot serve."""
    if any(each.dtype != call.k.dtype for each in call[:5] if each is not None):
        return "its tensors are of several dtypes"
    return why_not() if call.k.numel() else "there are no channels or rows"


def _flops(*_: Any) -> int:
    """None are counted: all of it is element by element, as in a norm."""
    return 0


FORM: Form[WKVCall, Mixed] = Form(
    "triton", _mean, "token by token by Triton, states in registers", devices=devices(),
    dtypes=frozenset({torch.float32}), transformed=False, serves=_hindrance, offer=offer(),
    flops={"weft.triton_wkv": _flops, "weft.triton_wkv_backward": _flops}, known_as=("cuda", "gpu"))
"""Of `weft.ops.wkv`."""
