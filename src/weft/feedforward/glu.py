"""Gated linear units: SwiGLU, GeGLU, ReGLU, GLU and the bilinear layer.

A gated linear unit with constant factors on its gate and on its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.compiling import compiler_traces
from weft.core.declarations import Declared, HasInferenceForm, WidthRoles
from weft.core.layer import Pointwise
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.feedforward.base import FeedForwardConfig
from weft.linear.linear import Divisible, Division, Linear, allowed, stored
from weft.ops.activations import ACTIVATIONS, Activation, ActivationName, gated_product
from weft.ops.few_rows import many_rows
from weft.ops.gated_feed_forward import GatedFeedForwardCall, bounded, gated_feed_forward
from weft.ops.linear import Map


class GLU(Pointwise, Divisible, HasInferenceForm):
    """A gated linear unit (Shazeer 2020, equations 5 and 6), for each token by itself.

        y = W_down (f(W_gate x + b_gate) * (W_up x + b_up)) + b_down

    f is silu for SwiGLU, gelu or gelu_tanh for GeGLU, relu for ReGLU, sigmoid for GLU, identity for the bilinear layer.
    x, y [B,T,D]; ``gate.weight`` and ``up.weight`` [F,D], ``down.weight`` [D,F]; the biases are optional. Gate and up
    are two matrices, as in Llama's files (Mixtral calls the three w1, w3 and w2); files that fuse them hold the rows
    of both in one. Its state is the clock alone.

    With ``limit`` L the gate is cut off above L and the other factor beyond -L and L, before f; ``shift`` c is added to
    that factor (gpt-oss: L 7, c 1, and quick_gelu, whose factor in the sigmoid is 1.702):

        y = W_down (f(min(W_gate x + b_gate, L)) * (clamp(W_up x + b_up, -L, L) + c)) + b_down
    """

    def __init__(self, d_model: int, d_ff: int, activation: ActivationName = "silu", *, bias: bool = False,
                 limit: float | None = None, shift: float = 0.0) -> None:
        super().__init__()
        self.activation, self.limit, self.shift = ACTIVATIONS[activation], limit, shift
        self.name: ActivationName = activation
        self.gate, self.up = Linear(d_model, d_ff, bias), Linear(d_model, d_ff, bias)
        self.down = Linear(d_ff, d_model, bias)

    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if decodes(x) and self.activation is ACTIVATIONS[self.name]:
            gate_map, up_map, down_map = stored(self.gate), stored(self.up), stored(self.down)
            if gate_map is not None and up_map is not None and down_map is not None:
                return gated_feed_forward(GatedFeedForwardCall(x, gate_map, up_map, down_map, self.name, self.limit,
                                                               self.shift))
        gate, up = bounded(self.gate(x), self.up(x), self.limit, self.shift)
        y: Tensor = self.down(gated_product(gate, up, self.activation))
        return y

    def declares(self) -> Declared:
        return Declared(width_roles=WidthRoles(GLU))

    def division(self) -> Division:
        width = self.up.out_features
        return Division({"d_ff": width}, into={"gate": (width,), "up": (width,)}, out_of={"down": (width,)})

    def divide(self, parts: int, place: int) -> None:
        """It has no numbers of its own: the widths are those of its maps."""

    def inference(self) -> Pointwise:
        return FusedGLU(self) if all("fuse" in allowed(part) for part in (self.gate, self.up)) else self


def decodes(x: Tensor) -> bool:
    """Whether a call is one for the operation of a whole unit: of few tokens, without gradients, and not traced by the
    compiler, which fuses the parts itself."""
    return (not torch.is_grad_enabled() and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)
            and not compiler_traces() and many_rows(x, x.dtype) is None)


class FusedGLU(Pointwise):
    """The inference form of `GLU`: one matrix [2F,D], the rows of gate above those of up."""

    def __init__(self, glu: GLU) -> None:
        super().__init__()
        self.activation, self.down, self.limit, self.shift = glu.activation, glu.down, glu.limit, glu.shift
        self.name, self.d_ff = glu.name, glu.gate.out_features
        parts = (glu.gate, glu.up)
        weight = torch.cat([part.weight for part in parts]).detach()
        bias = None if glu.gate.bias is None else nn.Parameter(torch.cat([part.bias for part in parts]).detach())
        self.gate_up = Linear.of(nn.Parameter(weight), bias)

    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        both, down = (stored(self.gate_up), stored(self.down)) if decodes(x) else (None, None)
        if both is not None and down is not None and self.activation is ACTIVATIONS[self.name]:
            return gated_feed_forward(GatedFeedForwardCall(x, *halves(both), down, self.name, self.limit, self.shift))
        gate, up = self.gate_up(x).split_with_sizes([self.d_ff] * 2, -1)
        gate, up = bounded(gate, up, self.limit, self.shift)
        y: Tensor = self.down(self.activation(gate) * up)
        return y


def halves(both: Map) -> tuple[Map, Map]:
    """The map above and the one below, of a map whose matrix of floats holds the rows of both."""
    middle = both.values.shape[0] // 2
    rows = slice(0, middle), slice(middle, None)
    first, second = (Map(both.values[part], None, None if both.bias is None else both.bias[part]) for part in rows)
    return first, second


NAMES: Mapping[str, str] = MappingProxyType({"silu": "SwiGLU", "gelu": "GEGLU", "gelu_tanh": "GEGLU", "relu": "ReGLU",
                                             "sigmoid": "GLU", "identity": "bilinear GLU"})
"""By activation; Shazeer 2020, equations 5 and 6."""


@register
class GLUConfig(FeedForwardConfig):
    """Gated linear unit. ``d_ff``: hidden width; left out, 8/3 d_model rounded up to a multiple of 8, which has about
    the parameters of a two-layer perceptron of width 4 d_model. ``limit`` L cuts the gate off above L and the other
    factor beyond -L and L; ``shift`` is added to the other factor (gpt-oss).

    Attributes:
        d_ff: hidden width F, in features; None: 8/3 d_model, rounded up to a multiple of 8.
        activation: f, of the gate.
        bias: whether all three maps have a bias.
        limit: L, above which the gate and beyond which the other factor is cut off; None: no limit.
        shift: added to the other factor.
    """

    kind: ClassVar[str] = "glu"
    about = About(
        source=("Shazeer 2020 (arXiv:2002.05202), equations 5 and 6; Agarwal et al. 2025 (arXiv:2508.10925), section "
                "2.1 (limit and shift)"),
        equation=r"y = W_{\text{down}} \left( f(W_{\text{gate}} x) \odot W_{\text{up}} x \right)",
        differs=(("mlp", "a second map gates the hidden units: three matrices in place of two."),
                 ("moe", "every token uses all of its weights.")))

    d_ff: int | None = Field(default=None, gt=0)
    activation: Activation = "silu"
    bias: bool = False
    limit: float | None = Field(default=None, gt=0)
    shift: float = 0.0

    def width(self, d_model: int) -> int:
        """The width of the hidden layer."""
        return -(-d_model // 3) * 8 if self.d_ff is None else self.d_ff

    def width_fields(self) -> tuple[str, ...]:
        return ("d_ff",)

    def in_words(self, d_model: int = 0) -> str:
        return f"{NAMES.get(self.activation, f'{self.activation} GLU')} {self.width(d_model):,}"

    def build(self, dims: Dims) -> GLU:
        return GLU(dims.d_model, self.width(dims.d_model), self.activation, bias=self.bias, limit=self.limit,
                   shift=self.shift)

    @classmethod
    def examples(cls) -> list[GLUConfig]:
        return [cls(), cls(d_ff=7, activation="gelu"), cls(d_ff=5, activation="gelu_tanh", bias=True),
                cls(d_ff=6, activation="relu"), cls(d_ff=6, activation="sigmoid"), cls(d_ff=6, activation="identity"),
                cls(d_ff=6, activation="quick_gelu", bias=True, limit=0.5, shift=1.0)]


@register
class ScaledGLUConfig(FeedForwardConfig):
    """Gated linear unit of a model whose rates were tuned at another width.

    Attributes:
        d_ff: hidden width, in features; None: 8/3 d_model, rounded up to a multiple of 8.
        activation: of the gate.
        bias: whether all three maps have one.
        gate_factor: on the gate, before its activation.
        factor: on the result.
    """

    kind: ClassVar[str] = "scaled_glu"
    about = About(
        source="Zuo et al. 2025 (Falcon-H1, arXiv:2507.22448), section 3.2",
        equation=r"y = c\, W_{\text{down}} \left( f(c_g W_{\text{gate}} x) \odot W_{\text{up}} x \right)",
        differs=(("glu", "has constant factors on the gate and on the result, with which rates carry over between "
                         "widths."),))

    d_ff: int | None = Field(default=None, gt=0)
    activation: Activation = "silu"
    bias: bool = False
    gate_factor: float = Field(default=1.0, allow_inf_nan=False)
    factor: float = Field(default=1.0, allow_inf_nan=False)

    def build(self, dims: Dims) -> ScaledGLU:
        width = -(-dims.d_model // 3) * 8 if self.d_ff is None else self.d_ff
        return ScaledGLU(self, dims.d_model, width)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_ff=5, bias=True, gate_factor=0.5, factor=-1.5)]


class ScaledGLU(GLU):
    """y = factor (W_down (f(gate_factor (W_gate x + b_gate)) * (W_up x + b_up)) + b_down); see `GLU`."""

    def __init__(self, config: ScaledGLUConfig, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff, config.activation, bias=config.bias)
        self.config = config

    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gate = self.gate(x) * self.config.gate_factor
        y: Tensor = self.down(gated_product(gate, self.up(x), self.activation))
        return y * self.config.factor
