"""Short causal convolutions over time that continue from a state and never cross a document's beginning.

The state is the *history*: the inputs that the taps of later tokens still reach, zero where a row or its current
document has none. So a call in which no document begins is one plain convolution, whatever the history holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from weft.core.span import Span
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation

MOST_TAPS = 4096
"""Of a short convolution, some of whose forms go through them one by one; longer filters are those of mixers that
convolve by Fourier transform, such as `s4d`."""


class ShortConvolutionCall(NamedTuple):
    """One call: y_t = b + sum_k W[:, :, k] x_{t - (K-1-k) dilation}, or silu of it.

    Attributes:
        inputs: the history before the chunk, and the chunk.
        weight, bias, dilation: as in `causal_convolution`.
        age: number of tokens of the same document before each token; None where no tap reaches before a document.
        silu: whether the result is silu(y).
    """

    inputs: Float[Tensor, "B P+T D"]
    weight: Float[Tensor, "G I K"]
    bias: Float[Tensor, " G"] | None
    dilation: int
    age: Float[Tensor, "B T 1"] | None
    silu: bool = False

    def steps(self) -> int:
        """Tokens of the chunk."""
        return self.inputs.shape[1] - (self.weight.shape[2] - 1) * self.dilation


def blank_history(batch: int, width: int, kernel: int, dilation: int, dtype: torch.dtype,
                  device: torch.device) -> Float[Tensor, "B P D"]:
    """The history before the first token, P = (kernel - 1) dilation."""
    return torch.zeros(batch, (kernel - 1) * dilation, width, dtype=dtype, device=device)


def causal_convolution(x: Float[Tensor, "B T D"], weight: Float[Tensor, "G I K"], bias: Float[Tensor, " G"] | None,
                       history: Float[Tensor, "B P D"] | None, span: Span, dilation: int = 1, *,
                       silu: bool = False) -> Float[Tensor, "B T G"]:
    """y_t = b + sum_k W[:, :, k] x_{t - (K-1-k) dilation}: the last tap lies on the current token.

    Args:
        weight: in torch.nn.Conv1d's layout; I = D is a full convolution, I = 1 a depthwise one (then G = D).
        history: as `next_history` left it; None: nothing came before. Where rows are cut among processes, it is what
            comes before the row, which is nothing.
        dilation: tokens between taps.
    """
    reach = (weight.shape[2] - 1) * dilation
    inputs = _with_history(x, history if span.pieces is None else span.pieces.before(x, reach), reach)
    age = (span.ticks.order - span.ticks.begin)[..., None] if span.packed else None
    return SHORT_CONVOLUTION(ShortConvolutionCall(inputs, weight, bias, dilation, age, silu))


def next_history(x: Float[Tensor, "B T D"], history: Float[Tensor, "B P D"], span: Span) -> Float[Tensor, "B P D"]:
    """The last P inputs of each row after the chunk, zero before its current document."""
    reach, after = history.shape[1], span.after
    inputs = torch.cat([history, x.to(history.dtype)], dim=1)
    if span.count is None:
        last = inputs[:, x.shape[1]:].clone()  # a view would keep the whole chunk alive as long as the state
    else:
        places = span.count[:, None] + torch.arange(reach, device=x.device)
        last = inputs.gather(1, places[..., None].expand(-1, -1, x.shape[2]))
    if not span.packed:
        return last
    assert after is not None, "a call with a state has a clock after it"
    distance = torch.arange(reach, 0, -1, device=x.device)
    inside = distance <= (after.seen - after.begin)[:, None]
    return last.masked_fill(~inside[..., None], 0)


def _with_history(x: Tensor, history: Tensor | None, reach: int) -> Tensor:
    if history is None:
        return F.pad(x, (0, 0, reach, 0))
    return torch.cat([history.to(x.dtype), x], dim=1)


def by_taps(inputs: Float[Tensor, "B P+T D"], weight: Float[Tensor, "G I K"], bias: Float[Tensor, " G"] | None,
            dilation: int, age: Int[Tensor, "#B T 1"] | None) -> Float[Tensor, "B T G"]:
    """The sum over taps; a tap that would reach before the token's document adds nothing."""
    taps = weight.shape[2]
    steps = inputs.shape[1] - (taps - 1) * dilation
    total = None if bias is None else bias.expand(inputs.shape[0], steps, -1)
    for tap in range(taps):
        lag = (taps - 1 - tap) * dilation
        earlier = inputs.narrow(1, tap * dilation, steps)
        if age is not None and lag > 0:
            earlier = earlier.masked_fill(age < lag, 0)
        term = earlier * weight[:, 0, tap] if weight.shape[1] == 1 else earlier @ weight[:, :, tap].t()
        total = term if total is None else total + term
    assert total is not None, "a kernel has at least one tap"
    return total


def _activated(call: ShortConvolutionCall, y: Tensor) -> Tensor:
    return F.silu(y) if call.silu else y


def _library(call: ShortConvolutionCall) -> Tensor:
    x, groups = call.inputs.transpose(1, 2), call.inputs.shape[2] // call.weight.shape[1]
    return _activated(call, F.conv1d(x, call.weight, call.bias, 1, 0, call.dilation, groups).transpose(1, 2))


def _by_taps(call: ShortConvolutionCall) -> Tensor:
    return _activated(call, by_taps(*call[:5]))


def _one_token(call: ShortConvolutionCall) -> Tensor:
    product = call.inputs[:, ::call.dilation] * call.weight[:, 0].t()
    y = product.sum(1, keepdim=True)
    return _activated(call, y if call.bias is None else y + call.bias)


def beyond_one_token(call: ShortConvolutionCall) -> str | None:
    """Why a form of one token cannot serve."""
    if call.steps() != 1:
        return "not one token"
    return _unfenced(call) if depthwise(call) else "taps mix channels"


def depthwise(call: ShortConvolutionCall) -> bool:
    """Whether taps mix no channels."""
    return call.weight.shape[1] == 1 and call.weight.shape[0] == call.inputs.shape[2]


def _unfenced(call: ShortConvolutionCall) -> str | None:
    return None if call.age is None else "a document begins inside the chunk"


def several(call: ShortConvolutionCall) -> str | None:
    """Why a form of many tokens does not pay."""
    return "a single token" if call.steps() <= 1 else None


def _examples(make: Make) -> Iterator[ShortConvolutionCall]:
    for steps, dilation in ((1, 2), (9, 1), (9, 4), (70, 3)):
        age = torch.arange(steps)[None, :, None] % 5
        for inner, packed in ((4, False), (1, False), (4, True), (1, True)):
            yield ShortConvolutionCall(make(2, steps + 2 * dilation, 4), make(4, inner, 3), make(4), dilation,
                                       age if packed else None, inner == 1 and steps in (1, 9))


SHORT_CONVOLUTION = OPERATIONS.add(Operation(
    "short_convolution", "a causal convolution of a few taps, full or depthwise",
    Form(REFERENCE, _by_taps, "a sum over taps", known_as=("taps",)),
    LateForm("native_token", "weft.ops.native_states.TAPS"),
    Form("token", _one_token, "one token, depthwise", serves=beyond_one_token),
    LateForm("native", "weft.ops.native_short_convolution.FORM"),
    LateForm("triton", "weft.ops.triton.short_convolution.FORM", "cuda"),
    Form("library", _library, "PyTorch's own", serves=_unfenced, worth=several, known_as=("conv1d", "torch")),
    subject="inputs", examples=_examples, known_as=("convolution",)))
