"""A chunk of tokens through linear state-space models as a convolution, from a state and across documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from weft.ops.dense_ssm import Powers
from weft.ops.fft_convolution import fft_convolution
from weft.ops.forms import REFERENCE, Make
from weft.ops.packed_convolution import PACKED_CONVOLUTION, PackedConvolutionCall, packed_convolution

Chunk: TypeAlias = tuple[Tensor, Tensor | None]
"""Outputs [B,T,H] and the state after the chunk [B,H,N]; None where none was given."""


class Inputs(NamedTuple):
    """The inputs of a state-space model in one call of at least one token.

    Attributes:
        x: inputs, in the dtype of the system.
        before: the state before the chunk; None: zero, and no state is returned.
        fresh: ``before`` is zero.
        starts: where a document begins; None: nowhere inside the rows.
        counts: tokens of each row; None: all.
    """

    x: Float[Tensor, "B T H"]
    before: Float[Tensor, "B H N"] | None
    fresh: bool
    starts: Bool[Tensor, "B T"] | None
    counts: Int64[Tensor, " B"] | None


class Convolutions(NamedTuple):
    """How to convolve rows of one document, [B,H,T], and packed ones, [B,T,H]."""

    whole: Callable[[Tensor, Tensor], Tensor]
    packed: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _whole_by_terms(u: Tensor, kernel: Tensor) -> Tensor:
    padded = F.pad(u, (u.shape[2] - 1, 0))
    return F.conv1d(padded, kernel.flip(-1)[:, None], groups=u.shape[1])


def _packed_by_terms(u: Tensor, kernel: Tensor, starts: Tensor, count: Tensor | None) -> Tensor:
    return PACKED_CONVOLUTION.form(REFERENCE).run(PackedConvolutionCall(u, kernel, starts, count))


BY_TERMS = Convolutions(_whole_by_terms, _packed_by_terms)
"""Term by term, in time O(T^2): rows of one document in memory O(T), packed ones in O(T^2)."""

BY_FFT = Convolutions(fft_convolution, packed_convolution)
"""By Fourier transforms, in O(T log T)."""


def convolved(given: Inputs, kernel: Float[Tensor, "H T"], powers: Callable[[], Powers], how: Convolutions) -> Chunk:
    """The outputs and the state after the chunk.

    Args:
        kernel: K_l = C A^l B for l < T.
        powers: of the system; called only where there is a state.
    """
    if given.starts is not None:
        return _documents(given, kernel, powers, given.starts, how)
    x, before, fresh, _, counts = given
    u = x.transpose(1, 2)
    y = how.whole(u, kernel)
    if before is None:
        return y.transpose(1, 2), None
    known = powers()
    if not fresh:
        y = y + known.response(before, u.shape[2])
    return y.transpose(1, 2), known.absorb(u.contiguous(), None if fresh else before, counts)


def _documents(given: Inputs, kernel: Tensor, powers: Callable[[], Powers], starts: Tensor, how: Convolutions) -> Chunk:
    """The carried state adds to the outputs until the first document begins; the state after the chunk is that of the
    last document."""
    x, before, _, _, counts = given
    y = how.packed(x, kernel, starts, counts)
    if before is None:
        return y, None
    known, begun = powers(), starts.cumsum(1)
    carried = known.response(before, x.shape[1]).transpose(1, 2)
    last = x.masked_fill((begun < begun[:, -1:])[..., None], 0).transpose(1, 2)
    after = known.absorb(last, before.masked_fill((begun[:, -1:] > 0)[..., None], 0), counts)
    return y + carried.masked_fill((begun > 0)[..., None], 0), after


def stepped(given: Inputs, step: Callable[[Tensor, Tensor], Tensor], read: Callable[[Tensor], Tensor],
            size: int) -> Chunk:
    """The recurrence, one token at a time.

    Args:
        step: from the state [B,H,N] and the input [B,H] to the next state.
        read: from a state to the output [B,H].
        size: N.
    """
    x, before, _, starts, counts = given
    state = x.new_zeros(x.shape[0], x.shape[2], size) if before is None else before
    kept, outputs = state, []
    for index, now in enumerate(x.unbind(1)):
        state = state if starts is None else state.masked_fill(starts[:, index, None, None], 0)
        state = step(state, now)
        kept = state if counts is None else torch.where((index < counts)[:, None, None], state, kept)
        outputs.append(read(state))
    return torch.stack(outputs, dim=1), None if before is None else kept


def inputs_for_forms(make: Make, channels: int, size: int) -> list[Inputs]:
    """Calls of every kind that forms distinguish. Rows whose tokens are counted have no documents after their end."""
    found = []
    for steps in (1, 6, 37):
        starts = (torch.arange(steps) % 5 == 2).expand(2, steps)
        x, before = make(2, steps, channels), make(2, channels, size)
        zero = torch.zeros(2, channels, size, dtype=before.dtype)
        found += [Inputs(x, None, True, None, None), Inputs(x, before, False, None, torch.tensor([steps, steps // 2])),
                  Inputs(x, before, False, None, None), Inputs(x, None, True, starts, None),
                  Inputs(x, before, False, starts, None), Inputs(x, zero, True, None, None)]
    return found
