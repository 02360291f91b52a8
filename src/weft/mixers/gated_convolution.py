"""The gated causal convolution of convolutional language models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.declarations import Declared, HasInferenceForm
from weft.core.layer import Layer, LayerState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Memory, Output, Span
from weft.core.state import tensor_field
from weft.linear.linear import HoldsMatrix, Linear, dense, read, unadapted
from weft.mixers.base import MixerConfig
from weft.ops.short_convolution import MOST_TAPS, blank_history, causal_convolution, next_history


@register
class GatedConvolutionConfig(MixerConfig):
    """A gated causal convolution.

    Attributes:
        d_conv: taps, in tokens; the last lies on the current token.
        dilation: tokens between taps.
        bias: whether the value and the gate have a bias.
    """

    kind: ClassVar[str] = "gated_convolution"
    about = About(
        source="Dauphin et al. 2017, eq. 1; van den Oord et al. 2016, section 2.1 (dilation)",
        equation=r"y = (X * W + b) \odot \sigma(X * V + c)",
        differs=(("mamba", "sees a fixed number of tokens, with weights that no token changes."),
                 ("s4d", "its kernel has few taps, each of its own.")),
        state_size="(kernel - 1) dilation d_model numbers")

    d_conv: int = Field(default=4, gt=0, le=MOST_TAPS)
    dilation: int = Field(default=1, gt=0)
    bias: bool = True

    def build(self, dims: Dims) -> GatedConvolution:
        return GatedConvolution(dims.d_model, self.d_conv, self.dilation, self.bias)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(d_conv=3, dilation=2, bias=False), cls(d_conv=1)]


@dataclass(frozen=True)
class ConvolutionState(LayerState):
    """The inputs on which the next output depends, P = (kernel - 1) dilation; zero before the first token."""

    history: Float[Tensor, "B P D"] = tensor_field()


class GatedConvolution(Layer, HoldsMatrix, HasInferenceForm):
    """(X * W + b) sigmoid(X * V + c), * a causal convolution with ``kernel`` taps ``dilation`` tokens apart.

    W and V are the halves of one weight [2D, D, kernel]. Opened, it is the matrix [2D, D kernel] of a map from the
    inputs under all taps, which adapters can stand beside. State: the last (kernel - 1) dilation inputs. The residual
    and the bottlenecks of the paper's deepest networks belong to the block.
    """

    state_type = ConvolutionState
    child = "convolution"
    held: ClassVar[Mapping[str, str]] = MappingProxyType({"weight": "convolution.weight", "bias": "convolution.bias"})
    calls = False

    def __init__(self, d_model: int, kernel: int = 4, dilation: int = 1, bias: bool = True) -> None:
        super().__init__()
        self.d_model, self.kernel, self.dilation = d_model, kernel, dilation
        self.convolution: nn.Module = nn.Conv1d(d_model, 2 * d_model, kernel, dilation=dilation, bias=bias)

    def opened(self) -> GatedConvolution:
        own = self.convolution
        if not (isinstance(own, nn.Conv1d) and unadapted(own, nn.Conv1d)):
            return self
        flat = nn.Parameter(own.weight.detach().flatten(1), requires_grad=own.weight.requires_grad)
        return self.with_child(Linear.of(flat, own.bias, allows=frozenset({"adapt"})))

    def inference(self) -> nn.Module:
        whole = None if isinstance(self.convolution, nn.Conv1d) else dense(self.convolution)
        if whole is None:
            return self
        weight, bias = self._kernel(whole[0].dtype)
        plain = nn.Conv1d(self.d_model, 2 * self.d_model, self.kernel, dilation=self.dilation, bias=bias is not None,
                          device="meta")
        plain.weight = nn.Parameter(weight.detach())
        if bias is not None:
            plain.bias = nn.Parameter(bias.detach())
        return self.with_child(plain)

    def _kernel(self, dtype: torch.dtype) -> tuple[Float[Tensor, "2D D K"], Float[Tensor, " 2D"] | None]:
        """The weight and the bias of the convolution."""
        own = self.convolution
        if isinstance(own, nn.Conv1d):
            return own.weight, own.bias
        weight, bias = read(own, dtype)
        return weight.unflatten(1, (self.d_model, self.kernel)), bias

    def declares(self) -> Declared:
        return Declared(borders=((self.kernel - 1) * self.dilation + 1,), joins_pieces=True)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype,
              memory: Memory | None) -> ConvolutionState:
        batch, device = clock.seen.shape[0], clock.seen.device
        return ConvolutionState(clock, blank_history(batch, self.d_model, self.kernel, self.dilation, dtype, device))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        assert state is None or isinstance(state, ConvolutionState), "checked by Layer.forward"
        history = None if state is None else state.history
        weight, bias = self._kernel(x.dtype)
        value, gate = causal_convolution(x, weight, bias, history, span, self.dilation).chunk(2, dim=2)
        y = value * gate.sigmoid()
        if state is None:
            return Output(y, None)
        assert span.after is not None, "a call with a state has a clock after it"
        return Output(y, ConvolutionState(span.after, next_history(x, state.history, span)))
