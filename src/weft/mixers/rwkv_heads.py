"""`RwkvHeads`, the base of the time mixing of RWKV-5, 6 and 7: a matrix for each head that decays by feature, token
shift before it, and a norm of each head's result after it.

Initial values of RWKV's decays, bonuses and mixes, which depend on the channel and on the layer, as in the released
training code (Peng et al. 2023, appendix E; Peng et al. 2024, appendix; Peng et al. 2025, appendix).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.declarations import Declared
from weft.core.layer import LayerState, Part
from weft.core.part_config import Dims
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.mixers.self_attention import HeadSizes, head_sizes
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.norms import LAYER_NORM, LayerNormCall
from weft.ops.operator import widen
from weft.ops.token_shift import last_token

PROJECTIONS = MappingProxyType(dict.fromkeys(("key", "value", "receptance", "gate", "output"), "memory projections"))


class RwkvHeadsConfig(MixerConfig):
    """Base of the configurations of RWKV's time mixing with matrix-valued states.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's keys and values; None: d_model / n_heads. Released models have 64.
        norm_eps: of the norm of each head's result.
    """

    n_heads: int = Field(default=4, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    norm_eps: float = Field(default=64e-5, gt=0, allow_inf_nan=False)

    def sizes(self, dims: Dims) -> HeadSizes:
        """The sizes of the heads, defaults filled in."""
        return head_sizes(self.n_heads, None, self.d_head, None, dims)


@dataclass(frozen=True)
class RwkvState(LayerState):
    """The input at the last token, zero before the first, and the matrices, or in version 4 the sums, of the current
    document, in float32 or better for any dtype of the model."""

    last: Float[Tensor, "B D"] = tensor_field()
    sums: Float[Tensor, "B ..."] = tensor_field(keeps_dtype=True)


class HeadNorm(Part):
    """Layer normalisation of each head's vector, with weights and biases of its own for every head: a group norm."""

    def __init__(self, sizes: HeadSizes, eps: float, scale: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.full((sizes.heads, sizes.d_head), scale))
        self.bias = nn.Parameter(torch.zeros(sizes.heads, sizes.d_head))

    def declares(self) -> Declared:
        return Declared(role="norms")

    def forward(self, x: Float[Tensor, "B T H E"]) -> Float[Tensor, "B T H E"]:
        """In float32 or better."""
        return LAYER_NORM(LayerNormCall(widen(x), None, None, self.eps)) * widen(self.weight) + widen(self.bias)


class RwkvHeads(RecurrentLayer[tuple[Tensor, ...]], ABC):
    """Receptance, key and value of H heads from shifted tokens, what the heads read from their matrices, a norm of each
    head, a gate, and the output map. The matrices are computed in float32 or better for any dtype of the model. The
    method `project` of a subclass returns the chunk, the gate [B,T,A] and what its method `remembered` takes."""

    state_type = RwkvState

    def __init__(self, config: RwkvHeadsConfig, dims: Dims) -> None:
        super().__init__()
        self.sizes, self.depth, self.d_model = config.sizes(dims), Depth.of(dims), dims.d_model
        self.width = self.sizes.heads * self.sizes.d_head
        self.receptance, self.key, self.value = (Linear(dims.d_model, self.width, bias=False) for _ in range(3))
        self.output = Linear(self.width, dims.d_model, bias=False)
        self.norm = HeadNorm(self.sizes, config.norm_eps, self.depth.norm_scale(dims.n_layers))

    @abstractmethod
    def remembered(self, mapped: tuple[Tensor, ...], before: Tensor | None,
                   boundaries: Boundaries) -> tuple[Tensor, Tensor, Tensor | None]:
        """The heads' results [B,T,H,E] before the norm, the matrices after the chunk, and what is added to the results
        after the norm, None for nothing.

        Args:
            mapped: what `project` returned after the gate.
            before: the matrices before the first token; None: zero.
        """

    def heads(self, x: Float[Tensor, "B T A"]) -> Float[Tensor, "B T H E"]:
        """Features by head, in float32 or better."""
        return torch.unflatten(widen(x), -1, (self.sizes.heads, -1))

    def declares(self) -> Declared:
        return Declared(role="memory", child_roles=PROJECTIONS, borders=(CHUNK,), joins_pieces=True)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.d_model,), (self.sizes.heads, self.sizes.d_head, self.sizes.d_head)

    def recur(self, projected: tuple[Tensor, ...], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        (x, gate, *mapped), (last, matrices) = projected, before
        o, sums, beside = self.remembered(tuple(mapped), matrices, boundaries)
        o = self.norm(o)
        o = (o if beside is None else o + beside).flatten(2).to(gate.dtype)
        return Recurred(o * gate, (None if last is None else last_token(x, last, span), sums))


class Depth(NamedTuple):
    """Where in the model a layer is.

    Attributes:
        ratio: layer / (n_layers - 1), from 0 for the first to 1 for the last; 0 in a model of one.
        share: layer / n_layers.
    """

    ratio: float
    share: float

    @staticmethod
    def of(dims: Dims) -> Depth:
        """Those of a part that is built for these dimensions."""
        return Depth(dims.layer / max(1, dims.n_layers - 1), dims.layer / dims.n_layers)

    def norm_scale(self, n_layers: int) -> float:
        """The initial weight of the norm of heads, ((layer + 1) / n_layers)^0.7."""
        return math.pow(self.share + 1 / n_layers, 0.7)


def rising(size: int, power: float) -> Tensor:
    """(i / size)^power for channel i."""
    return (torch.arange(size) / size) ** power


def line(size: int) -> Tensor:
    """i / (size - 1), from 0 to 1; 0 for a single channel."""
    return torch.arange(size) / max(1, size - 1)


def decay_schedule(size: int, depth: Depth, *, first: float, span: float) -> Tensor:
    """log(-log of the decay): from ``first`` for channel 0 to ``first + span`` for the last, the later layers the more
    bent towards ``first``."""
    return first + span * line(size) ** (0.7 + 1.3 * depth.ratio)


def zigzag(size: int) -> Tensor:
    """0, 1, -1, 0, 1, -1, ..., by channel."""
    return ((torch.arange(size) + 1) % 3 - 1) / 1  # in the default dtype, which may be float64


def four_bonus(size: int) -> Tensor:
    """RWKV-4's bonuses u."""
    return math.log(0.3) + 0.5 * zigzag(size)


def matrix_bonus(size: int, depth: Depth) -> Tensor:
    """The bonuses u of RWKV-5 and 6."""
    return depth.ratio * (1 - line(size)) + 0.1 * zigzag(size)


def seven_decay(size: int, depth: Depth) -> Tensor:
    """RWKV-7's w for channels, before what differs within heads."""
    return -5.5 + 6 * line(size) ** (1 + math.pow(depth.ratio, 0.3))


def within_heads(size: int, d_head: int) -> Tensor:
    """x |x| for x from -1 for the first feature of each head to 1 for the last; 0 in heads of one feature."""
    middle = (d_head - 1) / 2
    from_middle = (torch.arange(size) % d_head - middle) / max(middle, 0.5)
    curved: Tensor = from_middle * from_middle.abs()
    return curved
