"""A recurrence of features that do not mix, over a chunk of tokens and from a state.

    h_t = a_t * h_{t-1} + x_t          elementwise, 0 <= a_t <= 1

It is what gated linear recurrent units compute (De et al. 2024, equation 4). All of it is computed in float32 or better
for any dtype of the model: a sum over a long document adds small numbers to large ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.pieces import Pieces
from weft.ops import native_diagonal_recurrence as in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.native.library import why_not
from weft.ops.operator import Kernel, differentiate, operator, widen
from weft.ops.recurrence import diagonal_before


class DiagonalRecurrenceCall(NamedTuple):
    """One call of at least one token.

    Attributes:
        log_decay: the logarithm of a_t; minus infinity for a token before which the state is cleared.
        before: the state before the first token.
    """

    x: Float[Tensor, "B T D"]
    log_decay: Float[Tensor, "B T D"]
    before: Float[Tensor, "B D"]


def diagonal_recurrence(x: Float[Tensor, "B T D"], log_decay: Float[Tensor, "B T D"],
                        before: Float[Tensor, "B D"] | None = None, starts: Bool[Tensor, "B T"] | None = None,
                        valid: Bool[Tensor, "B T"] | None = None,
                        pieces: Pieces | None = None) -> tuple[Tensor, Tensor]:
    """The state after every token, [B,T,D], and after the chunk, [B,D], in float32 or better.

    Args:
        log_decay: the logarithm of the decay, at most 0.
        before: the state before the first token; None: zero.
        starts: where a document begins, before which the state is cleared; None: nowhere.
        valid: False for tokens that the state does not take, after a row's last; None: all are taken.
        pieces: of rows that are cut among processes, for which ``before`` is the state before the row.
    """
    x = widen(x)
    log_decay = log_decay.to(x.dtype)
    before = x.new_zeros(x.shape[0], x.shape[2]) if before is None else before.to(x.dtype)
    if starts is not None:
        log_decay = log_decay.masked_fill(starts[..., None], -math.inf)
    if valid is not None:
        x, log_decay = (each.masked_fill(~valid[..., None], 0) for each in (x, log_decay))
    if pieces is not None:
        before = diagonal_before(pieces, x, log_decay, before)
    states = DIAGONAL_RECURRENCE(DiagonalRecurrenceCall(x, log_decay, before))
    return states, states[:, -1].clone()  # a view would keep the whole chunk alive as long as the state


def _steps(call: DiagonalRecurrenceCall) -> Tensor:
    x, log_decay, h = call
    states = []
    for entering, decay in zip(x.unbind(1), log_decay.exp().unbind(1), strict=True):
        h = decay * h + entering
        states.append(h)
    return torch.stack(states, 1)


def _one(call: DiagonalRecurrenceCall) -> Tensor:
    return torch.addcmul(call.x, call.log_decay.exp(), call.before[:, None])


def _pieces(call: DiagonalRecurrenceCall) -> Tensor:
    """Some sqrt(T) pieces side by side, each from zero; then what each piece passes on to the next."""
    x, log_decay, before = call
    batch, steps, width = x.shape
    size = max(1, math.isqrt(steps))
    count = -(-steps // size)
    x, log_decay = (F.pad(each, (0, 0, 0, count * size - steps)).view(batch, count, size, width).transpose(1, 2)
                    for each in (x, log_decay))
    own, sums = _side_by_side(x, log_decay), log_decay.cumsum(1)
    entering, passed = [], before
    for last, decay in zip(own[:, -1].unbind(1), sums[:, -1].exp().unbind(1), strict=True):
        entering.append(passed)
        passed = torch.addcmul(last, decay, passed)
    states = torch.addcmul(own, sums.exp(), torch.stack(entering, 1)[:, None])
    return states.transpose(1, 2).reshape(batch, count * size, width)[:, :steps]


def _side_by_side(x: Tensor, log_decay: Tensor) -> Tensor:
    """The states of all pieces [B,S,N,D], each of which begins at zero."""
    h = x[:, 0]
    states = [h]
    for entering, decay in zip(x.unbind(1)[1:], log_decay.exp().unbind(1)[1:], strict=True):
        h = torch.addcmul(entering, decay, h)
        states.append(h)
    return torch.stack(states, 1)


def _operator(call: DiagonalRecurrenceCall) -> Tensor:
    found: Tensor = _forward(*call, native=False)
    return found


def _native(call: DiagonalRecurrenceCall) -> Tensor:
    found: Tensor = _forward(*call, native=True)
    return found


def _run(x: Tensor, log_decay: Tensor, before: Tensor, native: bool) -> Tensor:
    h = in_c.forward(log_decay, x, before) if native else _pieces(DiagonalRecurrenceCall(x, log_decay, before))
    return h.contiguous()


def _run_shapes(x: Tensor, log_decay: Tensor, before: Tensor, native: bool) -> Tensor:
    return x.new_empty(x.shape)


def _run_backward(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor,
                  native: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``log_decay``, ``x`` and ``before``."""
    if native:
        return in_c.backward(dh, log_decay, before, h)
    dlogs, dx, dbefore = _slopes(dh, log_decay, before, h, native)
    return dlogs.contiguous(), dx.contiguous(), dbefore.contiguous()


def _slopes(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor, native: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The same by the operator itself, backwards in time, so that autograd can differentiate it again:
    s_t = dh_t + a_{t+1} s_{t+1} is the gradient of x_t."""
    after = torch.cat([log_decay[:, 1:], torch.zeros_like(log_decay[:, :1])], 1)
    dx = _forward(dh.flip(1), after.flip(1), torch.zeros_like(before), native).flip(1)
    passed = log_decay.exp() * dx
    return passed * torch.cat([before[:, None], h[:, :-1]], 1), dx, passed[:, 0]


def _backward_shapes(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor,
                     native: bool) -> tuple[Tensor, Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape), before.new_empty(before.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, log_decay, before, ctx.native = inputs
    ctx.save_for_backward(log_decay, before, output)


def _gradient(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: what a checkpoint computes again it gives once
    work: Kernel = _slopes if torch.is_grad_enabled() else _backward
    dlogs, dx, dbefore = work(dh, *saved, ctx.native)
    return dx, dlogs, dbefore, None


_forward = operator("diagonal_recurrence", _run, _run_shapes)
_backward = operator("diagonal_recurrence_backward", _run_backward, _backward_shapes)
differentiate("diagonal_recurrence", _gradient, _save)


def _flops(x: Tensor, *_: object) -> int:
    """One multiplication and one addition for each number; exponentials are not counted."""
    return 2 * x.numel()


def _backward_flops(dh: Tensor, *_: object) -> int:
    """Slopes back in time, and two products more for those of the decays."""
    return 4 * dh.numel()


def _several(call: DiagonalRecurrenceCall) -> str | None:
    return None if call.x.shape[1] == 1 else "several tokens"


def _single(call: DiagonalRecurrenceCall) -> str | None:
    return "a single token" if call.x.shape[1] == 1 else None


def _in_c(call: DiagonalRecurrenceCall) -> str | None:
    if not call.x.numel():
        return "there are no features or rows"
    return why_not()


FLOPS = {"weft.diagonal_recurrence": _flops, "weft.diagonal_recurrence_backward": _backward_flops}


def _examples(make: Make) -> Iterator[DiagonalRecurrenceCall]:
    for steps, width in ((1, 3), (7, 5), (130, 70), (17, 64)):
        log_decay = -make(2, steps, width).square()
        yield DiagonalRecurrenceCall(make(2, steps, width), log_decay, make(2, width))
        starts = (torch.arange(steps) % 5 == 2)[None, :, None]
        yield DiagonalRecurrenceCall(make(2, steps, width), log_decay.masked_fill(starts, -math.inf), make(2, width))


DIAGONAL_RECURRENCE = OPERATIONS.add(Operation(
    "diagonal_recurrence", "a recurrence of features that do not mix",
    Form(REFERENCE, _steps, "step by step", known_as=("steps",)),
    Form("step", _one, "one token", serves=_several),
    Form("native", _native, "all steps in C, states in registers", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32}), transformed=False, serves=_in_c, worth=_single, flops=FLOPS,
         known_as=("c", "kernel")),
    LateForm("triton", "weft.ops.triton.diagonal_recurrence.FORM", "cuda"),
    Form("operator", _operator, "sqrt(T) pieces side by side, as one operator", transformed=False, flops=FLOPS,
         known_as=("pieces",)),
    subject="x", examples=_examples, known_as=("rg_lru", "linear_rnn", "diagonal_scan")))
