"""RWKV-4's decaying mean in C, forward and backward, in float32 on a processor.

Channels are the lanes of vectors, tokens are read one after another, and threads share rows and groups of channels. The
backward pass keeps the state before every 32 tokens and computes those between again, so that memory besides inputs and
results grows with a thirty-second of the tokens. The sources are `weft/ops/native/wkv.c` and what it includes.
"""

from __future__ import annotations

import ctypes
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.native.library import Incomplete, run
from weft.ops.operator import differentiable
from weft.ops.wkv_chunks import forward as plain

LANES = 64
"""Channels of a piece of work: at most those of four vectors of the widest instruction set."""


class _WkvCall(ctypes.Structure):
    """`Wkv` of native/wkv.h."""

    _fields_ = (*((name, ctypes.c_void_p) for name in (
        "k", "v", "decay", "bonus", "before", "starts", "valid", "y", "after", "dy", "dafter", "dk", "dv", "ddecay",
        "dbonus", "dbefore")), *((name, ctypes.c_long) for name in ("batch", "steps", "channels", "next")))


def native(k: Float[Tensor, "B T D"], v: Float[Tensor, "B T D"], decay: Float[Tensor, " D"],
           bonus: Float[Tensor, " D"], before: Float[Tensor, "B 3 D"], starts: Bool[Tensor, "B T"] | None,
           valid: Bool[Tensor, "B T"] | None) -> tuple[Tensor, Tensor]:
    """The means and the state after the last token; the arguments are those of `weft.ops.wkv.WKVCall`."""
    y, after = _FORWARD(k, v, decay, bonus, before, starts, valid)
    return y, after


def _call(k: Tensor, **tensors: Tensor | None) -> _WkvCall:
    """The arguments of the C functions; all tensors are contiguous."""
    call = _WkvCall(batch=k.shape[0], steps=k.shape[1], channels=k.shape[2], k=k.data_ptr())
    for name, x in tensors.items():
        setattr(call, name, None if x is None else x.data_ptr())
    return call


def _dense(*tensors: Tensor | None) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]


def _forward(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
             valid: Tensor | None) -> tuple[Tensor, Tensor]:
    k, v, decay, bonus, before, starts, valid = _dense(k, v, decay, bonus, before, starts, valid)
    y, after = k.new_empty(k.shape), k.new_empty(before.shape)
    run("weft_wkv_forward", _call(k, v=v, decay=decay, bonus=bonus, before=before, starts=starts, valid=valid, y=y,
                                  after=after))
    return y, after


def shapes(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
           valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results."""
    return k.new_empty(k.shape), k.new_empty(before.shape)


def _backward(dy: Tensor, dafter: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor,
              starts: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dy, dafter, k, v, decay, bonus, before, starts, valid = _dense(dy, dafter, k, v, decay, bonus, before, starts,
                                                                   valid)
    dk, dv, dbefore = k.new_empty(k.shape), k.new_empty(k.shape), k.new_empty(before.shape)
    ddecay, dbonus = k.new_empty(k.shape[0], k.shape[2]), k.new_empty(k.shape[0], k.shape[2])
    call = _call(k, v=v, decay=decay, bonus=bonus, before=before, starts=starts, valid=valid, dy=dy, dafter=dafter,
                 dk=dk, dv=dv, ddecay=ddecay, dbonus=dbonus, dbefore=dbefore)
    run("weft_wkv_backward", call)
    if call.next < k.shape[0] * -(-k.shape[2] // LANES):
        raise Incomplete("the decaying mean in C could not reserve memory for its states. Give it shorter rows.")
    return dk, dv, ddecay.sum(0), dbonus.sum(0), dbefore


_FORWARD = differentiable("native_wkv", _forward, shapes, _backward, plain, 5)
