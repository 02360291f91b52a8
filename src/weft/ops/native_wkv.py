"""RWKV-4's decaying mean in C, forward and backward, in float32 on a processor.

Channels are the lanes of vectors, tokens are read one after another, and threads share rows and groups of channels. The
backward pass keeps the state before every 32 tokens and computes those between again, so that memory besides inputs and
results grows with a thirty-second of the tokens. The sources are `weft/ops/native/wkv.c` and what it includes.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.native.library import ADDRESS, COUNT, run, structure
from weft.ops.operator import differentiable
from weft.ops.wkv_chunks import forward as plain

LANES = 64
"""Channels of a piece of work: at most those of four vectors of the widest instruction set."""


_WkvCall = structure(
    (ADDRESS, "k v decay bonus before starts valid y after dy dafter dk dv ddecay dbonus dbefore"),
    (COUNT, "batch steps channels next"))
"""`Wkv` of native/wkv.h."""


def native(k: Float[Tensor, "B T D"], v: Float[Tensor, "B T D"], decay: Float[Tensor, " D"],
           bonus: Float[Tensor, " D"], before: Float[Tensor, "B 3 D"], starts: Bool[Tensor, "B T"] | None,
           valid: Bool[Tensor, "B T"] | None) -> tuple[Tensor, Tensor]:
    """The means and the state after the last token; the arguments are those of `weft.ops.wkv.WKVCall`."""
    y, after = _FORWARD(k, v, decay, bonus, before, starts, valid)
    return y, after


def _call(k: Tensor) -> Any:
    return _WkvCall(batch=k.shape[0], steps=k.shape[1], channels=k.shape[2])


def _forward(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
             valid: Tensor | None) -> tuple[Tensor, Tensor]:
    y, after = k.new_empty(k.shape), k.new_empty(before.shape)
    run("weft_wkv_forward", _call(k), k=k, v=v, decay=decay, bonus=bonus, before=before, starts=starts, valid=valid,
        y=y, after=after)
    return y, after


def shapes(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor, starts: Tensor | None,
           valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results."""
    return k.new_empty(k.shape), k.new_empty(before.shape)


def _backward(dy: Tensor, dafter: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, before: Tensor,
              starts: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dk, dv, dbefore = k.new_empty(k.shape), k.new_empty(k.shape), k.new_empty(before.shape)
    ddecay, dbonus = k.new_empty(k.shape[0], k.shape[2]), k.new_empty(k.shape[0], k.shape[2])
    run("weft_wkv_backward", _call(k), k.shape[0] * -(-k.shape[2] // LANES),
        "the decaying mean in C could not reserve memory for its states. Give it shorter rows.",
        k=k, v=v, decay=decay, bonus=bonus, before=before, starts=starts, valid=valid, dy=dy, dafter=dafter, dk=dk,
        dv=dv, ddecay=ddecay, dbonus=dbonus, dbefore=dbefore)
    return dk, dv, ddecay.sum(0), dbonus.sum(0), dbefore


_FORWARD = differentiable("native_wkv", _forward, shapes, _backward, plain, 5)
