"""The recurrence of linear attention, with and without decay, over a chunk of tokens and from a state.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,   o_t = q_t S_t          S [E,F] for each of K heads of values

without decay (a = 1; Katharopoulos et al. 2020, equations 18 to 20), with one constant for each head (retention, Sun et
al. 2023, equation 6), with one for each head and token (Dao & Gu 2024, section 3.4), or with one for each feature of a
key and token (gated linear attention, Yang et al. 2024, equation 3). A normaliser z_t = a_t z_{t-1} + k_t is one more
feature of the values, which is 1. All of it is computed in float32 or better: a sum over a long document adds small
numbers to large ones.

The recurrence of RWKV-5 and 6: a token reads the state before it, and itself with a bonus.

    o_t = r_t (S_{t-1} + diag(u) k_t v_t^T),   S_t = diag(a_t) S_{t-1} + k_t v_t^T          S [E,F] for each head

(Peng et al. 2024, equations 17 to 19). r_{t+1} S_t is what `linear_recurrence` gives for queries shifted by one token
to the left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.core.pieces import Pieces
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.linear_recurrence_chunks import CHUNK, RecurrenceSizes, backward, forward, products, shapes
from weft.ops.operator import differentiable, widen
from weft.ops.recurrence import matrix_before

Recurred = tuple[Tensor, Tensor]
"""Outputs [B,T,max(H,K),F] and the state after the last token, [B,K,E,F]."""


class LinearRecurrenceCall(NamedTuple):
    """One call of at least one token.

    Attributes:
        q: queries; H is a multiple of K, and H / K consecutive ones read one state, or H = J.
        k: keys; J divides K, and K / J consecutive states share a key head, and its query head where H = J (the groups
            of Dao & Gu 2024, section 7.2). Zeros for tokens that must not enter it. On a GPU q and k may be narrow.
        log_decay: the logarithm of a_t: None for 1, [1,1,K,1] for a constant, [B,T,K,1] or [B,T,K,E]; minus infinity
            for a token before which the state is cleared.
        before: the state before the first token.
    """

    q: Float[Tensor, "B T H E"]
    k: Float[Tensor, "B T J E"]
    v: Float[Tensor, "B T K F"]
    log_decay: Float[Tensor, "#B #T K #E"] | None
    before: Float[Tensor, "B K E F"]


def linear_recurrence(q: Float[Tensor, "B T H E"], k: Float[Tensor, "B T J E"], v: Float[Tensor, "B T K F"],
                      log_decay: Float[Tensor, "#B #T K #E"] | None = None,
                      before: Float[Tensor, "B K E F"] | None = None, starts: Bool[Tensor, "B T"] | None = None,
                      valid: Bool[Tensor, "B T"] | None = None, pieces: Pieces | None = None) -> Recurred:
    """The outputs and the state after the chunk, in float32 or better.

    Args:
        q, k, log_decay: as in `LinearRecurrenceCall`.
        before: the state before the first token; None: zero.
        starts: where a document begins, before which the state is cleared; None: nowhere.
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
        pieces: of rows that are cut among processes, for which ``before`` is the state before the row.
    """
    v = widen(v)
    if pieces is not None or not q.is_cuda or k.dtype != q.dtype:
        q, k = widen(q), widen(k)
    if before is None:
        before = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    if valid is not None:
        k = k.masked_fill(~valid[..., None, None], 0)
    if pieces is not None:
        before = before_piece(pieces, k, v, log_decay, before, starts, valid)
    by_token = decays_by_token(v, log_decay, starts, valid)
    return LINEAR_RECURRENCE(LinearRecurrenceCall(q, k, v, by_token, before.to(v.dtype)))


def before_piece(pieces: Pieces, k: Float[Tensor, "B T J E"], v: Float[Tensor, "B T K F"], log_decay: Tensor | None,
                 before: Float[Tensor, "B K E F"], starts: Bool[Tensor, "B T"] | None,
                 valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B K E F"]:
    """The state before the piece of rows that are cut among processes, from the state before the row; the arguments are
    those of `linear_recurrence`."""
    taken = k if valid is None else k.masked_fill(~valid[..., None, None], 0)
    return matrix_before(pieces, taken, v, decays_by_token(v, log_decay, starts, valid), before)


def decays_by_token(v: Tensor, log_decay: Tensor | None, starts: Tensor | None, valid: Tensor | None) -> Tensor | None:
    """The logarithm of the decay with minus infinity where a document begins, and 0 for tokens that are not taken."""
    known = None if log_decay is None else log_decay.to(v.dtype)
    if starts is None and (valid is None or known is None):
        return known
    by_token = v.new_zeros(*v.shape[:3], 1) if known is None else known.expand(*v.shape[:3], -1)
    if starts is not None:
        by_token = by_token.masked_fill(starts[..., None, None], float("-inf"))
    return by_token if valid is None else by_token.masked_fill(~valid[..., None, None], 0)


def bidirectional_sums(q: Float[Tensor, "B T H E"], k: Float[Tensor, "B T K E"], v: Float[Tensor, "B T K F"],
                       starts: Bool[Tensor, "B T"] | None, valid: Bool[Tensor, "B T"] | None) -> Tensor:
    """q_t sum_s k_s v_s^T over all tokens s of t's document, [B,T,H,F], in float32 or better.

    Within packed documents it is the recurrence in both directions, less the token itself, which both have counted.
    """
    q, k, v = widen(q), widen(k), widen(v)
    if starts is not None:
        ends = torch.cat([starts[:, 1:], starts[:, :1]], 1).flip(1)
        there = linear_recurrence(q, k, v, None, None, starts, valid)[0]
        back = linear_recurrence(q.flip(1), k.flip(1), v.flip(1), None, None, ends,
                                 None if valid is None else valid.flip(1))[0].flip(1)
        grouped = q.unflatten(2, (k.shape[2], -1))
        own: Tensor = (grouped * k[:, :, :, None]).sum(-1, keepdim=True) * v[:, :, :, None]
        return there + back - own.flatten(2, 3)
    if valid is not None:
        k = k.masked_fill(~valid[..., None, None], 0)
    sums = torch.einsum("btke,btkf->bkef", k, v)
    return torch.einsum("btkge,bkef->btkgf", q.unflatten(2, (k.shape[2], -1)), sums).flatten(2, 3)


def _recurrence(call: LinearRecurrenceCall) -> Recurred:
    q, k, v, log_decay, state = widen(call.q), widen(call.k), *call[2:]
    steps, heads = q.shape[1], v.shape[2]
    q = q.repeat_interleave(heads // q.shape[2], 2) if q.shape[2] < heads else q
    k = k.repeat_interleave(heads // k.shape[2], 2)
    decays = [None] * steps if log_decay is None else log_decay.exp().expand(-1, steps, -1, -1).unbind(1)
    outputs = []
    for query, key, value, decay in zip(q.unbind(1), k.unbind(1), v.unbind(1), decays, strict=True):
        state = state if decay is None else state * decay[..., None]
        state = state + key[..., None] * value[..., None, :]
        outputs.append((query.unflatten(1, (heads, -1)) @ state).flatten(1, 2))
    return torch.stack(outputs, 1), state


def _step(call: LinearRecurrenceCall) -> Recurred:
    q, k, v, log_decay, state = widen(call.q), widen(call.k), *call[2:]
    batch, heads = v.shape[0], v.shape[2]
    query = q.view(batch, heads, -1, q.shape[3]) if q.shape[2] >= heads else _shared(q, heads)
    key = _shared(k, heads) if k.shape[2] < heads else k[:, 0, :, None]
    kept = state if log_decay is None else state * log_decay[:, 0].exp()[..., None]
    after = torch.addcmul(kept, key.mT, v[:, 0, :, None])
    return (query @ after).view(batch, 1, -1, v.shape[3]), after


def _shared(x: Tensor, heads: int) -> Tensor:
    """The one token of queries or keys of fewer heads, [B,K,1,E]."""
    return x.view(x.shape[0], x.shape[2], 1, -1).repeat_interleave(heads // x.shape[2], 1)


def _operator(call: LinearRecurrenceCall) -> Recurred:
    found: Recurred = _forward(widen(call.q), widen(call.k), *call[2:])
    return found


def _run(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    return forward(q, k, v, log_decay, before)


def _run_backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                  before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dg, dbefore = backward(grad, grad_after, q, k, v, log_decay, before)
    return dq, dk, dv, dq.new_empty(0) if dg is None else dg, dbefore


_forward = differentiable("linear_recurrence", _run, shapes, _run_backward, forward, 5)


def chunked_flops(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> int:
    """Operations by chunks of 64 tokens."""
    return products(RecurrenceSizes.of(q, k, v), q.shape[1], by_feature(log_decay), slopes=False)


def chunked_backward_flops(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                    before: Tensor) -> int:
    """Those of the backward pass."""
    return products(RecurrenceSizes.of(q, k, v), q.shape[1], by_feature(log_decay), slopes=True)


def by_feature(log_decay: Tensor | None) -> bool:
    """Whether decays differ between the features of a key."""
    return log_decay is not None and log_decay.shape[3] > 1


def _one(call: LinearRecurrenceCall) -> str | None:
    return None if call.q.shape[1] == 1 else "several tokens"


def _examples(make: Make) -> Iterator[LinearRecurrenceCall]:
    for rows, steps in ((1, 1), (2, 7), (1, CHUNK + 5)):
        starts = (torch.arange(steps) % 5 == 2).expand(rows, steps)[..., None, None]
        q, k, v, before = make(rows, steps, 4, 3), make(rows, steps, 2, 3), make(rows, steps, 2, 5), make(rows, 2, 3, 5)
        constant = -make(1, 1, 2, 1).square()
        for log_decay in (None, constant, -make(rows, steps, 2, 1).square(), -make(rows, steps, 2, 3).square()):
            yield LinearRecurrenceCall(q, k, v, log_decay, before)
            if log_decay is not None and log_decay.shape[1] == steps:
                yield LinearRecurrenceCall(q, k, v, log_decay.masked_fill(starts, float("-inf")), before)
                yield LinearRecurrenceCall(q[:, :, :1], k[:, :, :1], v, log_decay, before)  # shared by both states
        yield LinearRecurrenceCall(q, k[:, :, :1], v, None, before)


LINEAR_RECURRENCE = OPERATIONS.add(Operation(
    "linear_recurrence", "linear attention with and without decay over a chunk",
    Form(REFERENCE, _recurrence, "step by step", known_as=("steps",)),
    Form("step", _step, "one token", serves=_one),
    LateForm("native", "weft.ops.native_linear_recurrence.FORM"),
    LateForm("triton", "weft.ops.triton.linear_recurrence.FORM", "cuda"),
    Form("operator", _operator, "chunks of 64 tokens, as one operator", transformed=False,
         flops={"weft.linear_recurrence": chunked_flops, "weft.linear_recurrence_backward": chunked_backward_flops},
         known_as=("chunks",)),
    subject="q", examples=_examples, known_as=("linear_attention", "retention", "gla", "ssd", "fast_weights")))


def delayed_recurrence(r: Float[Tensor, "B T H E"], k: Float[Tensor, "B T H E"], v: Float[Tensor, "B T H F"],
                       bonus: Float[Tensor, "H E"], log_decay: Float[Tensor, "#B #T H E"],
                       before: Float[Tensor, "B H E F"] | None, starts: Bool[Tensor, "B T"] | None,
                       valid: Bool[Tensor, "B T"] | None, pieces: Pieces | None = None) -> tuple[Tensor, Tensor]:
    """The outputs [B,T,H,F] and the state after at least one token, in float32 or better.

    Args:
        log_decay: the logarithm of a_t, at most 0.
        before: the state before the first token; None: zero.
        starts: where a document begins, before which the state is cleared; None: nowhere.
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
        pieces: of rows that are cut among processes, for which ``before`` is the state before the row.
    """
    r, k, v = widen(r), widen(k), widen(v)
    if pieces is not None and before is not None:
        before = before_piece(pieces, k, v, log_decay.expand_as(k), before.to(v.dtype), starts, valid)
    following = torch.cat([r[:, 1:], torch.zeros_like(r[:, :1])], 1)
    read, after = linear_recurrence(following, k, v, log_decay.expand_as(k), before, starts, valid)
    entering = torch.zeros_like(v[:, 0]) if before is None else (r[:, 0, :, None] @ before.to(r.dtype))[:, :, 0]
    past = torch.cat([entering[:, None], read[:, :-1]], 1)
    past = past if starts is None else past.masked_fill(starts[..., None, None], 0)
    return past + (r * widen(bonus) * k).sum(-1, keepdim=True) * v, after
