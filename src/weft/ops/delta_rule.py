"""The delta rule over a chunk of tokens and from a state: a memory whose tokens read before they write.

    S_t = (diag(exp(g_t)) + b_t a_t^T) S_{t-1} + k_t v_t^T,   o_t = q_t S_t          S [E,F] for each head

A memory that adds can only fill up; the delta rule takes away what the memory returned for a key and writes what it
should return (Schlag et al. 2021, section 4.2). With l2-normalised keys and a rate beta_t,

    DeltaNet                 a = k, b = -beta k, written key beta k, no decay            Yang et al. 2024b, section 2.2
    Gated DeltaNet           a = alpha k, b = -beta k, g = log alpha of a head           Yang et al. 2025, equation 10
    Kimi Delta Attention     a = exp(g) k, b = -beta k, g by feature                     Kimi Team 2025, equation 1
    RWKV-7                   a = -kappa, b = kappa times the in-context rate, g by feature

All of it is computed in float32 or better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.core.pieces import Pieces
from weft.ops.delta_rule_chunks import backward, forward, products
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.linear_recurrence import decays_by_token
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.native.library import threads, why_not
from weft.ops.native_delta_rule import native, native_backward_flops, native_flops, shapes
from weft.ops.operator import differentiable, widen

Recurred = tuple[Tensor, Tensor]
"""Outputs [B,T,H,F] and the state after the last token, [B,H,E,F]."""

LARGEST = 1 << 16
"""Numbers of a memory up to which native code is faster: with 256 x 256 matrix products are nearly as fast."""


class DeltaRuleCall(NamedTuple):
    """One call of at least one token.

    Attributes:
        k: keys under which values are written; zeros for a token that must not enter the state.
        a: what every token reads with before it writes; zeros for one before which the state is cleared, and for one
            that must not enter it.
        b: keys under which that is written.
        log_decay: g, at most 0: None for 0, [1,1,H,1 or E] for a constant, [B,T,H,1] or [B,T,H,E]; minus infinity for
            a token before which the state is cleared.
        before: the state before the first token.
    """

    q: Float[Tensor, "B T H E"]
    k: Float[Tensor, "B T H E"]
    v: Float[Tensor, "B T H F"]
    a: Float[Tensor, "B T H E"]
    b: Float[Tensor, "B T H E"]
    log_decay: Float[Tensor, "#B #T H #E"] | None
    before: Float[Tensor, "B H E F"]


def delta_rule(q: Float[Tensor, "B T H E"], k: Float[Tensor, "B T H E"], v: Float[Tensor, "B T H F"],
               a: Float[Tensor, "B T H E"], b: Float[Tensor, "B T H E"],
               log_decay: Float[Tensor, "#B #T H #E"] | None = None,
               before: Float[Tensor, "B H E F"] | None = None, starts: Bool[Tensor, "B T"] | None = None,
               valid: Bool[Tensor, "B T"] | None = None, pieces: Pieces | None = None) -> Recurred:
    """The outputs and the state after the chunk, in float32 or better.

    Args:
        k: keys under which values are written.
        a: what a token reads with before it writes.
        b: keys under which that is written.
        log_decay: the logarithm of the decay, at most 0, as in `DeltaRuleCall`; None: no decay.
        before: the state before the first token; None: zero.
        starts: where a document begins, before which the state is cleared; None: nowhere.
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
        pieces: of rows that are cut among processes, for which ``before`` is the state before the row.
    """
    q, k, v, a, b = widen(q), widen(k), widen(v), widen(a), widen(b)
    if before is None:
        before = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    if starts is not None:
        a = a.masked_fill(starts[..., None, None], 0)
    if valid is not None:
        k, a = k.masked_fill(~valid[..., None, None], 0), a.masked_fill(~valid[..., None, None], 0)
    by_token = decays_by_token(k, log_decay, starts, valid)
    call = DeltaRuleCall(q, k, v, a, b, by_token, before.to(v.dtype))
    return DELTA_RULE(call if pieces is None else call._replace(before=_before(pieces, call)))


def _before(pieces: Pieces, call: DeltaRuleCall) -> Float[Tensor, "B H E F"]:
    """The state before the piece of this call. What a piece makes of a state is a matrix: the state after it from the
    identity, without values."""
    size = call.k.shape[3]
    identity = torch.eye(size, dtype=call.v.dtype, device=call.v.device).expand(*call.before.shape[:2], -1, -1)
    values = torch.cat([call.v, call.v.new_zeros(*call.v.shape[:3], size)], -1)
    _, both = DELTA_RULE(call._replace(v=values, before=torch.cat([torch.zeros_like(call.before), identity], -1)))
    update, factor = both.split_with_sizes([call.v.shape[3], size], -1)
    return pieces.entering(call.before, factor, update, torch.matmul)


def _steps(call: DeltaRuleCall) -> Recurred:
    q, k, v, a, b, log_decay, state = call
    steps = q.shape[1]
    decays = [None] * steps if log_decay is None else log_decay.exp().expand(-1, steps, -1, -1).unbind(1)
    outputs = []
    for query, key, value, reader, writer, decay in zip(*(x.unbind(1) for x in (q, k, v, a, b)), decays, strict=True):
        read = torch.einsum("bhe,bhef->bhf", reader, state)
        state = state if decay is None else state * decay[..., None]
        state = state + writer[..., None] * read[..., None, :] + key[..., None] * value[..., None, :]
        outputs.append(torch.einsum("bhe,bhef->bhf", query, state))
    return torch.stack(outputs, 1), state


def _step(call: DeltaRuleCall) -> Recurred:
    q, k, v, a, b, log_decay, state = call
    kept = state if log_decay is None else state * log_decay[:, 0, ..., None].exp()
    written = torch.cat([a.transpose(1, 2) @ state, v.transpose(1, 2)], 2)
    after = kept + torch.stack([b[:, 0], k[:, 0]], 3) @ written
    return (q.transpose(1, 2) @ after).transpose(1, 2), after


def _operator(call: DeltaRuleCall) -> Recurred:
    found: Recurred = _forward(*call)
    return found


def _native(call: DeltaRuleCall) -> Recurred:
    return native(*call)


def _run(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None,
         before: Tensor) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, a, b, log_decay, before)


def _run_backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
                  log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                                                     Tensor]:
    dq, dk, dv, da, db, dg, dbefore = backward(grad, grad_after, q, k, v, a, b, log_decay, before)
    return dq, dk, dv, da, db, dq.new_empty(0) if dg is None else dg, dbefore


_forward = differentiable("delta_rule", _run, shapes, _run_backward, forward, 7)


def _flops(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_decay: Tensor | None, before: Tensor) -> int:
    return products(v.shape, k.shape[3], _by_feature(log_decay), slopes=False)


def _backward_flops(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
                    log_decay: Tensor | None, before: Tensor) -> int:
    return products(v.shape, k.shape[3], _by_feature(log_decay), slopes=True)


def _by_feature(log_decay: Tensor | None) -> bool:
    return log_decay is not None and log_decay.shape[3] > 1


def _one(call: DeltaRuleCall) -> str | None:
    return None if call.q.shape[1] == 1 else "several tokens"


def _beyond_native(call: DeltaRuleCall) -> str | None:
    if any(x is not None and x.dtype != torch.float32 for x in call):
        return "its tensors are of several dtypes"
    return why_not()


def _slow_native(call: DeltaRuleCall) -> str | None:
    if call.k.shape[3] * call.v.shape[3] > LARGEST:
        return "a memory is larger than the cache"
    return "it has fewer heads than threads" if call.q.shape[0] * call.q.shape[2] < threads() else None


def _examples(make: Make) -> Iterator[DeltaRuleCall]:
    for steps in (1, 7, CHUNK + 5):
        starts = (torch.arange(steps) % 5 == 2).expand(2, steps)[..., None, None]
        q, k, a, b = (make(2, steps, 2, 3) / 2 for _ in range(4))
        v, before = make(2, steps, 2, 5), make(2, 2, 3, 5)
        constant = -make(1, 1, 2, 1).square()
        for log_decay in (None, constant, -make(2, steps, 2, 1).square(), -make(2, steps, 2, 3).square()):
            b = b / (1 + (a * b).sum(-1, keepdim=True).abs())  # so that the memory does not grow without end
            yield DeltaRuleCall(q, k, v, a, b, log_decay, before)
            if log_decay is not None and log_decay.shape[1] == steps:
                yield DeltaRuleCall(q, k, v, a.masked_fill(starts, 0), b,
                                    log_decay.masked_fill(starts, float("-inf")), before)


DELTA_RULE = OPERATIONS.add(Operation(
    "delta_rule", "the delta rule with decays over a chunk",
    Form(REFERENCE, _steps, "step by step", known_as=("steps",)),
    Form("step", _step, "one token", serves=_one),
    Form("native", _native, "token by token in C, in the cache", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32}), transformed=False, serves=_beyond_native, worth=_slow_native,
         flops={"weft.native_delta_rule": native_flops, "weft.native_delta_rule_backward": native_backward_flops}),
    LateForm("triton", "weft.ops.triton.delta_rule.FORM", "cuda"),
    Form("operator", _operator, "chunks of 64 tokens, as one operator", transformed=False,
         flops={"weft.delta_rule": _flops, "weft.delta_rule_backward": _backward_flops}, known_as=("chunks",)),
    subject="q", examples=_examples, known_as=("deltanet", "gated_delta_net", "kda", "rwkv7", "householder")))
