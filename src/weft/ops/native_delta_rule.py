"""The delta rule in C: token by token in float32 on a processor, forward and backward.

A head's memory stays in the processor's cache and is passed over once for each token. The backward pass reads the
arguments alone; a thread keeps as many memories as the root of the number of tokens, twice. Threads share the heads of
rows. The sources are `weft/ops/native/delta_rule.c` and what it includes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.delta_rule_chunks import forward as plain
from weft.ops.native.library import ADDRESS, COUNT, run, structure
from weft.ops.operator import differentiable

_DeltaRuleCall = structure(
    (ADDRESS, "q k v a b decay before y after dy dafter dq dk dv da db ddecay dbefore"), (3 * COUNT, "decay_at"),
    (COUNT, "batch steps heads size value_size decays next"))
"""`DeltaRule` of native/delta_rule.h."""


def native(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None,
           before: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and the state after the last token; the arguments are those of `weft.ops.delta_rule.DeltaRuleCall`, in
    float32."""
    found: tuple[Tensor, Tensor] = _FORWARD(q, k, v, a, b, log_decay, before)
    return found


def _decays(log_decay: Tensor | None, shape: torch.Size) -> Tensor | None:
    """exp, for every row, token and head, without a copy for those that share it."""
    return None if log_decay is None else log_decay.exp().contiguous().expand(*shape[:3], -1)


def _run(name: str, shape: torch.Size, values: int, decay: Tensor | None, **tensors: Tensor) -> None:
    batch, steps, heads, size = shape
    call = _DeltaRuleCall(batch=batch, steps=steps, heads=heads, size=size, value_size=values)
    if decay is not None:
        call.decay, call.decays = decay.data_ptr(), decay.shape[3]
        call.decay_at = (3 * COUNT)(*decay.stride()[:3])
    run(name, call, batch * heads, "the delta rule in C could not reserve the memory of a head. Give it fewer threads "
        "or shorter sequences.", **tensors)


def _forward(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None,
             before: Tensor) -> tuple[Tensor, Tensor]:
    y, after = v.new_empty(v.shape), before.new_empty(before.shape)
    _run("weft_delta_rule_forward", q.shape, v.shape[3], _decays(log_decay, q.shape), q=q, k=k, v=v, a=a, b=b,
         before=before, y=y, after=after)
    return y, after


def shapes(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None,
           before: Tensor) -> tuple[Tensor, Tensor]:
    """Empty tensors for the results."""
    return v.new_empty(v.shape), before.new_empty(before.shape)


def _backward(dy: Tensor, dafter: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
              log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                                                 Tensor]:
    """The gradients of all arguments; an empty one for a decay that is not given."""
    dq, dk, dv, da, db, dbefore = (x.new_empty(x.shape) for x in (q, k, v, a, b, before))
    decay = _decays(log_decay, q.shape)
    ddecay = q.new_empty(0 if decay is None else decay.shape)
    _run("weft_delta_rule_backward", q.shape, v.shape[3], decay, q=q, k=k, v=v, a=a, b=b, before=before, dy=dy,
         dafter=dafter, dq=dq, dk=dk, dv=dv, da=da, db=db, ddecay=ddecay, dbefore=dbefore)
    if log_decay is not None and decay is not None:
        ddecay = (ddecay * decay).sum_to_size(log_decay.shape)
    return dq, dk, dv, da, db, ddecay, dbefore


_FORWARD = differentiable("native_delta_rule", _forward, shapes, _backward, plain, 7)


def native_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """The operations of two products of a vector and the memory and of two outer products for each token and head;
    decays are element-wise."""
    return 8 * q.numel() * v.shape[3]


def native_backward_flops(dy: Tensor, dafter: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """The memories again, twice, of which no query reads; two outer products, and seven products with a memory or its
    gradient."""
    return (2 * 6 + 18) * q.numel() * v.shape[3]
