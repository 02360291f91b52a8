"""Causal convolutions with a kernel as long as the row in C, term by term, forward and backward, in float32 on a
processor, with documents or without. Every term is a product, so that time grows with the square of the tokens; below
some hundreds of them that is less than Fourier transforms take. The sources are `weft/ops/native/long_convolution.c`
and what it includes. """

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from weft.ops.native.library import ADDRESS, COUNT, run, structure, why_not
from weft.ops.operator import differentiable

LONGEST = 512
"""Tokens up to which terms are faster than transforms: on an AMD EPYC (Zen 5) they take half of the time there."""


_LongConvolutionCall = structure(
    (ADDRESS, "u kernel first y dy du dkernel"), (COUNT, "batch steps channels next"))
"""`LongConvolution` of native/long_convolution.h."""


def in_c(u: Float[Tensor, "B T H"], kernel: Float[Tensor, "H T"],
         first: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T H"]:
    """y_t = sum of k_{t-s} u_s over first_t <= s <= t.

    Args:
        u, kernel: in float32.
        first: the first token that each one reads, t + 1 for none; it does not decrease along a row. None: 0.
    """
    y: Tensor = _FORWARD(u, kernel, first)
    return y


def first_read(starts: Bool[Tensor, "B T"], counts: Int64[Tensor, " B"] | None) -> Int[Tensor, "B T"]:
    """The first token of each one's document; t + 1 beyond the tokens that are counted."""
    places = torch.arange(starts.shape[1], device=starts.device)
    first = torch.where(starts, places, 0).cummax(1).values
    return first if counts is None else torch.where(places < counts[:, None], first, places + 1)


def why_no_terms(u: Tensor, kernel: Tensor) -> str | None:
    """Why `in_c` cannot serve a call."""
    if not u.numel():
        return "there are no tokens or channels"
    return why_not() if u.dtype == kernel.dtype else "its tensors have several dtypes"


def too_long(steps: int) -> str | None:
    """Why transforms are faster."""
    return "too many tokens" if steps > LONGEST else None


def _run(u: Tensor, kernel: Tensor, first: Tensor | None) -> Tensor:
    y = _shapes(u, kernel, first)
    _call("forward", u, kernel, first, y=y)
    return y


def _shapes(u: Tensor, kernel: Tensor, first: Tensor | None) -> Tensor:
    return u.new_empty(u.shape)


def _call(name: str, u: Tensor, kernel: Tensor, first: Tensor | None, **others: Tensor) -> None:
    call = _LongConvolutionCall(batch=len(u), steps=u.shape[1], channels=u.shape[2])
    places = None if first is None else first.to(torch.int32)
    run(f"weft_long_convolution_{name}", call, 1, "the convolution in C could not reserve the memory of a row. "
        "Name the form `operator`.", u=u, kernel=kernel, first=places, **others)


def _run_backward(dy: Tensor, u: Tensor, kernel: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of ``u`` and ``kernel``."""
    du, dkernel = u.new_empty(u.shape), kernel.new_empty(kernel.shape)
    _call("backward", u, kernel, first, dy=dy, du=du, dkernel=dkernel)
    return du, dkernel


def by_terms(u: Tensor, kernel: Tensor, first: Tensor | None = None) -> Tensor:
    """The same by PyTorch's operators, in memory B T^2 H."""
    places = torch.arange(u.shape[1], device=u.device)
    lags = places[:, None] - places
    read = (lags >= 0).expand(len(u), -1, -1)
    if first is not None:
        read = read & (places >= first[..., None])
    # A selection: a product with zeros would let NaN through.
    terms = torch.where(read[..., None], kernel.t()[lags.clamp(min=0)] * u[:, None], 0.0)  # [B,T,S,H]
    return terms.sum(2)


_FORWARD = differentiable("native_long_convolution", _run, _shapes, _run_backward, by_terms, 2)


def _flops(u: Tensor, *_: Any) -> int:
    """A product for every pair of tokens of a row and every channel; documents are not known here."""
    batch, steps, channels = u.shape
    return batch * steps * (steps + 1) * channels


def _backward_flops(dy: Tensor, *_: Any) -> int:
    """The same for either gradient."""
    return 2 * _flops(dy)


FLOPS = {"weft.native_long_convolution": _flops, "weft.native_long_convolution_backward": _backward_flops}
