"""A chunk of tokens through a diagonal state-space model, from a state and across documents: 2 Re(C x) and the state
after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.ops.diagonal_system import kernel
from weft.ops.fft_convolution import fft_convolution
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.packed_convolution import packed_convolution
from weft.ops.s4d import Modes, absorb, multiply, read, response

Chunk = tuple[Tensor, Tensor | None]


class S4DCall(NamedTuple):
    """One call of at least one token.

    Attributes:
        x: inputs, in the dtype of the modes.
        before: the modes' state before the chunk; None: zero, and no state is returned.
        fresh: ``before`` is zero.
        starts: where a document begins; None: nowhere inside the rows.
        counts: tokens of each row; None: all.
    """

    x: Float[Tensor, "B T H"]
    modes: Modes
    before: Float[Tensor, "B H M 2"] | None
    fresh: bool
    starts: Bool[Tensor, "B T"] | None
    counts: Int64[Tensor, " B"] | None


def _recurrence(call: S4DCall) -> Chunk:
    """x_t = A x_{t-1} + B u_t, y_t = 2 Re(C x_t), one token at a time."""
    x, modes, before, _, starts, count = call
    a = modes.power(x.new_ones(()))
    state = x.new_zeros(x.shape[0], *modes.b.shape) if before is None else before
    kept, outputs = state, []
    for step, now in enumerate(x.unbind(1)):
        state = state if starts is None else state.masked_fill(starts[:, step, None, None, None], 0)
        state = multiply(a, state) + modes.b * now[..., None, None]
        kept = state if count is None else torch.where((step < count)[:, None, None, None], state, kept)
        outputs.append(read(modes.c, state))
    return torch.stack(outputs, dim=1), None if before is None else kept


def _convolution(call: S4DCall) -> Chunk:
    """The whole chunk as a convolution, what the state before still adds, and the state after."""
    modes, before, count = call.modes, call.before, call.counts
    u = call.x.transpose(1, 2)
    y = fft_convolution(u, kernel(modes, u.shape[2]))
    if before is None:
        return y.transpose(1, 2), None
    if not call.fresh:
        y = y + response(modes, before, u.shape[2])
    return y.transpose(1, 2), absorb(modes, u.contiguous(), None if call.fresh else before, count)


def _documents(call: S4DCall) -> Chunk:
    """The carried state adds to the outputs until the first document begins; the state after the chunk is that of the
    last document."""
    x, modes, before, _, starts, count = call
    assert starts is not None, "without documents it does not serve"
    before = None if before is None else before.masked_fill(starts[:, :1, None, None], 0)
    y = packed_convolution(x, kernel(modes, x.shape[1]), starts, count)
    if before is None:
        return y, None
    begun = starts.cumsum(1)
    carried = response(modes, before, x.shape[1]).transpose(1, 2)
    last = x.masked_fill((begun < begun[:, -1:])[..., None], 0).transpose(1, 2).contiguous()
    after = absorb(modes, last, before.masked_fill((begun[:, -1:] > 0)[..., None, None], 0), count)
    return y + carried.masked_fill((begun > 0)[..., None], 0), after


def _whole(call: S4DCall) -> str | None:
    return None if call.starts is None else "a document begins inside the chunk"


def _packed(call: S4DCall) -> str | None:
    return "no document begins inside the chunk" if call.starts is None else None


def _several(call: S4DCall) -> str | None:
    return "a single token" if call.x.shape[1] == 1 else None


def _examples(make: Make) -> Iterator[S4DCall]:
    def modes() -> Modes:
        return Modes(-make(3, 2).square() - 0.01, make(3, 2), make(3, 2, 2), make(3, 2, 2))

    for steps in (1, 6, 37):
        # Rows whose tokens are counted have no documents after their end.
        starts = (torch.arange(steps) % 5 == 2).expand(2, steps)
        yield S4DCall(make(2, steps, 3), modes(), None, True, None, None)
        yield S4DCall(make(2, steps, 3), modes(), make(2, 3, 2, 2), False, None, torch.tensor([steps, steps // 2]))
        yield S4DCall(make(2, steps, 3), modes(), None, True, starts, None)
        yield S4DCall(make(2, steps, 3), modes(), make(2, 3, 2, 2), False, starts, None)
        yield S4DCall(make(2, steps, 3), modes(), torch.zeros(2, 3, 2, 2, dtype=torch.float64), True, None, None)


S4D_CHUNK = OPERATIONS.add(Operation(
    "s4d", "a diagonal state-space model over a chunk",
    Form(REFERENCE, _recurrence, "step by step", known_as=("steps",)),
    Form("documents", _documents, "each document as a convolution", serves=_packed, worth=_several),
    Form("convolution", _convolution, "the whole chunk as a convolution", serves=_whole, worth=_several),
    subject="x", examples=_examples, known_as=("ssm", "state_space")))
