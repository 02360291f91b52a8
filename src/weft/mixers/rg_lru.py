"""The recurrent block of Griffin: a short convolution, a gated linear recurrence of separate features, a gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.ops.activations import ACTIVATIONS, Activation
from weft.ops.diagonal_recurrence import diagonal_recurrence
from weft.ops.operator import widen
from weft.ops.short_convolution import MOST_TAPS, causal_convolution, next_history

SHARPNESS = 8.0
"""c: a_t = a^(c r_t)."""
SLOWEST, FASTEST = 0.999, 0.9
"""Between which a lies at first; a^2 is uniform between their squares."""

ROLES = MappingProxyType(dict.fromkeys(("branches", "recurrence_gate", "input_gate", "mix"), "memory projections"))


@register
class RGLRUConfig(MixerConfig):
    """A gated linear recurrence whose decays depend on the token, behind a short convolution and under a gate.

    Attributes:
        d_recurrence: W, features of the recurrence; None: d_model.
        n_heads: heads, the blocks in which features give each other's gates; it divides ``d_recurrence``.
        d_conv: taps of the convolution, in tokens.
        activation: of the gate.
    """

    kind: ClassVar[str] = "rg_lru"
    about = About(
        title="RG-LRU", also_called=("griffin", "hawk", "recurrentgemma"),
        source="De et al. 2024 (Griffin), sections 2.3 and 2.4, equations 1 to 4",
        equation=(r"r_t = \sigma(W_r u_t + b_r), \quad i_t = \sigma(W_i u_t + b_i), \quad a_t = e^{-c\, r_t "
                  r"\operatorname{softplus}(\Lambda)}, \quad h_t = a_t \odot h_{t-1} + \sqrt{1 - a_t^2} \odot (i_t "
                  r"\odot u_t)"),
        differs=(("mamba", "one number of state for each feature, in place of N."),
                 ("gru", "the gates do not read the state, so that a row is computed in parallel.")),
        state_size="kernel width numbers, of which width are float32")

    d_recurrence: int | None = Field(default=None, gt=0)
    n_heads: int = Field(default=4, gt=0)
    d_conv: int = Field(default=4, gt=0, le=MOST_TAPS)
    activation: Activation = "gelu_tanh"

    def build(self, dims: Dims) -> RGLRU:
        width = self.d_recurrence or dims.d_model
        if width % self.n_heads:
            raise dims.problem("n_heads", f"{width} features do not divide into {self.n_heads} blocks.",
                               "Give a number of heads that divides the width.")
        return RGLRU(dims.d_model, width, self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(d_recurrence=6, n_heads=3, d_conv=1, activation="silu")]


@dataclass(frozen=True)
class RGLRUState(LayerState):
    """The inputs that the convolution still reaches, P = kernel - 1, and the memory, in float32 or better."""

    history: Float[Tensor, "B P W"] = tensor_field()
    memory: Float[Tensor, "B W"] = tensor_field(keeps_dtype=True)


class BlockLinear(nn.Module):
    """A linear map of W features whose matrix has ``n_blocks`` blocks on its diagonal: weight [blocks, in, out] and
    bias [blocks, out]."""

    def __init__(self, width: int, n_blocks: int) -> None:
        super().__init__()
        size = width // n_blocks
        self.weight = nn.Parameter(torch.randn(n_blocks, size, size) / math.sqrt(size))
        self.bias = nn.Parameter(torch.zeros(n_blocks, size))

    def forward(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T W"]:
        blocks = x.unflatten(-1, (self.weight.shape[0], -1)).flatten(0, 1).transpose(0, 1)
        return torch.baddbmm(self.bias[:, None], blocks, self.weight).transpose(0, 1).reshape(x.shape)


class RGLRU(RecurrentLayer[tuple[Tensor, ...]]):
    """With u the convolved x W_x and s the sigmoid, for each of W features

        r_t = s(u_t W_r + b_r),   i_t = s(u_t W_i + b_i),   log a_t = -c r_t softplus(rate),   c = 8
        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t u_t),      y_t = (g(x_t W_g) h_t) W_o

    where W_r and W_i are block-diagonal and g is the activation. The first token of a document enters whole, without
    the root, as in the published code; the paper's equation scales it like any other. Its rate begins so that
    a = exp(-softplus(rate)) lies between 0.9 and 0.999 with a^2 uniform, as that code has it; section 2.4 says so of
    a^c. The recurrence is computed in float32 or better for any dtype of the model. State: (kernel - 1) W numbers of
    the convolution and W of the memory.
    """

    state_type = RGLRUState

    def __init__(self, d_model: int, width: int, config: RGLRUConfig) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.branches = Linear(d_model, 2 * width)
        self.convolution = nn.Conv1d(width, width, config.d_conv, groups=width)
        self.recurrence_gate, self.input_gate = (BlockLinear(width, config.n_heads) for _ in range(2))
        squared = torch.empty(width).uniform_(FASTEST ** 2, SLOWEST ** 2)
        self.rate = nn.Parameter(torch.expm1(-squared.log() / 2).log())
        self.mix = Linear(width, d_model)

    def declares(self) -> Declared:
        return Declared(child_roles=ROLES, borders=(self.config.d_conv,), dynamics=(self.rate,), joins_pieces=True)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.config.d_conv - 1, self.width), (self.width,)

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        entering, gate = self.branches(x).chunk(2, -1)
        u = causal_convolution(entering, self.convolution.weight, self.convolution.bias, before[0], span)
        return entering, gate, self.recurrence_gate(u), u * torch.sigmoid(self.input_gate(u))

    def recur(self, projected: tuple[Tensor, ...], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        entering, gate, logits, gated = projected
        history, memory = before
        log_decay = -SHARPNESS * torch.sigmoid(widen(logits)) * F.softplus(widen(self.rate))
        first = (span.ticks.order == span.ticks.begin)[..., None]
        taken = widen(gated) * torch.where(first, 1.0, _complement(log_decay))
        h, after = diagonal_recurrence(taken, log_decay, memory, *boundaries)
        return Recurred(ACTIVATIONS[self.config.activation](gate) * h.to(gate.dtype),
                        (None if history is None else next_history(entering, history, span), after))

    def output(self, o: Tensor) -> Float[Tensor, "B T D"]:
        """The output map."""
        y: Tensor = self.mix(o)
        return y


def _complement(log_decay: Tensor) -> Tensor:
    """sqrt(1 - a^2). Its slope at a = 1, which is infinite, is taken as zero: there nothing enters the state."""
    return torch.sqrt((-torch.expm1(2 * log_decay)).clamp_min(torch.finfo(log_decay.dtype).tiny))
