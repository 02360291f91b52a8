"""`KernelAttention`, the base of attention in linear time: phi(q).phi(k) takes the place of exp(q.k).

    y_t = phi(q_t) S_t / phi(q_t) z_t,   S_t = sum over s of phi(k_s) v_s^T,   z_t = sum over s of phi(k_s)

The sums are over the tokens up to t, or, under a bidirectional mask, over all of the document. The causal sums are a
state of fixed size, whatever the length of the sequence (Katharopoulos et al. 2020, section 3.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.clock import Clock, Ticks
from weft.core.config import PartField, rule
from weft.core.declarations import Declared, Trait
from weft.core.errors import UnsupportedError
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.recurrent_layer import Carried, MatrixState, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Memory, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.masks import Bidirectional, Causal, Mask, MaskField
from weft.mixers.base import MixerConfig
from weft.mixers.self_attention import HeadSizes, head_sizes
from weft.ops.linear_recurrence import bidirectional_sums, linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.operator import widen
from weft.positions.base import NoPositionConfig, PositionConfig, PositionScheme


class KernelAttentionConfig(MixerConfig):
    """Options of all attention in linear time.

    Attributes:
        n_heads: query heads H.
        n_kv_heads: key and value heads K, each shared by H / K query heads and with a state of its own; None: H.
        d_head: features of a head's queries and keys before the feature map; None: d_model / n_heads.
        d_value: features of a head's values; None: d_head.
        mask: ``causal`` or ``bidirectional``; no other is a sum that tokens share.
        position: a scheme that rotates queries and keys, as `KernelAttention` says, or none.
        bias: whether the projections of queries, keys and values have a bias, the output's, or all.
    """

    n_heads: int = Field(default=4, gt=0)
    n_kv_heads: int | None = Field(default=None, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    mask: Annotated[Mask, MaskField()] = Causal()
    position: Annotated[PositionConfig, PartField("position")] = NoPositionConfig()
    bias: Literal["none", "qkv", "output", "all"] = "none"

    @model_validator(mode="after")
    def _require_shared_sums(self) -> Self:
        if self.mask not in (Causal(), Bidirectional()):
            raise rule("mask", f"{self.mask!r} gives tokens sums of different keys, and attention in linear time has "
                       "one sum for all.", "Give 'causal' or 'bidirectional', or use the mixer 'attention'.")
        return self

    def sizes(self, dims: Dims) -> HeadSizes:
        """The sizes of the heads."""
        return head_sizes(self.n_heads, self.n_kv_heads, self.d_head, self.d_value, dims)


def rotation(position: PositionConfig, dims: Dims, heads: int, size: int) -> PositionScheme:
    """The scheme of a mixer that computes no scores, for vectors of ``size`` features. Raises `ConfigError`: the scheme
    acts on anything but queries and keys."""
    scheme = position.build_for_heads(dims.at("position"), heads, size)
    elsewhere = scheme.acts_on - {"queries_keys"}
    if "embeddings" in elsewhere:
        raise dims.problem("position", f"{position.kind!r} acts on embeddings, not inside a mixer.",
                           "Put it in the model's `position`.")
    if elsewhere:
        raise dims.problem("position", f"{position.kind!r} acts on {' and '.join(sorted(elsewhere))}, and this mixer "
                           "computes no score of a query and a key.",
                           "Give one that acts on queries and keys, such as 'rope', or use the mixer 'attention'.")
    return scheme


@dataclass(frozen=True)
class NormalisedState(MatrixState):
    """Also the sum of phi(k), by which outputs are divided."""

    normaliser: Float[Tensor, "B K E"] = tensor_field(keeps_dtype=True)


class Features(NamedTuple):
    """Queries and keys after the feature map, in float32 or better.

    Attributes:
        q: [B,T,H,M].
        k: [B,T,K,M]; zeros beyond each row's count.
        log_decay: [B,T,K,1], the logarithm of the factor by which a token scales the sums before it; None for 1.
        peak: [B,K], what the state stores beside the sums; None for nothing.
    """

    q: Tensor
    k: Tensor
    log_decay: Tensor | None = None
    peak: Tensor | None = None


PROJECTIONS = MappingProxyType(dict.fromkeys(("qkv", "output"), "attention projections"))


class KernelAttention(RecurrentLayer[Tensor], ABC):
    """Attention with a feature map in place of the exponential, in time and memory O(T).

    A position scheme rotates what the feature map returns, in the numerator alone (Su et al. 2021, equation 19): a
    rotated feature may be negative, and a sum of such features could be 0. State: S and z of every key head,
    K M (d_value + 1) numbers for M features, in float32 or better; so are all sums, whatever the model's dtype.

    Args:
        features: M.
        normalise: whether outputs are divided by phi(q) z.
        rotate_first: whether positions rotate queries and keys before the feature map, so that all is positive and the
            denominator is rotated too.
    """

    state_type: type[MatrixState] = NormalisedState

    def __init__(self, config: KernelAttentionConfig, features: int, dims: Dims, *, normalise: bool = True,
                 rotate_first: bool = False) -> None:
        super().__init__()
        self.sizes = sizes = config.sizes(dims)
        self.causal, self.normalise, self.features = config.mask == Causal(), normalise, features
        self.position = rotation(config.position, dims, sizes.heads, sizes.d_head if rotate_first else features)
        self.rotates, self.rotate_first = "queries_keys" in self.position.acts_on and not rotate_first, rotate_first
        self.widths = sizes.split()
        self.qkv = Linear(dims.d_model, sum(self.widths), bias=config.bias in ("qkv", "all"),
                          outputs=dict(zip("qkv", self.widths, strict=True)))
        self.output = Linear(sizes.heads * sizes.d_value, dims.d_model, bias=config.bias in ("output", "all"))

    @abstractmethod
    def mapped(self, q: Float[Tensor, "B T H E"], k: Float[Tensor, "B T K E"], before: Carried,
               boundaries: Boundaries) -> Features:
        """The features of queries and keys."""

    def declares(self) -> Declared:
        return Declared(role="attention sums", child_roles=PROJECTIONS,
                        traits=frozenset() if self.causal else frozenset({Trait.BIDIRECTIONAL}), borders=(CHUNK,))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        shape = (self.sizes.kv_heads, self.features, self.sizes.d_value)
        return (shape, shape[:2]) if self.normalise else (shape,)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        if not self.causal:
            raise UnsupportedError("under a bidirectional mask tokens attend to later ones, so attention has no state.",
                                   where="init_state", remedy="Call it without a state, on the whole sequence.")
        return super().start(clock, capacity=capacity, dtype=dtype, memory=memory)

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> Float[Tensor, "B T A"]:
        qkv: Tensor = self.qkv(x)
        return qkv

    def recur(self, projected: Tensor, before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        q, k, v = widen(projected).split_with_sizes(self.widths, -1)
        q = q.unflatten(-1, (self.sizes.heads, -1))
        k, v = k.unflatten(-1, (self.sizes.kv_heads, -1)), v.unflatten(-1, (self.sizes.kv_heads, -1))
        if self.rotate_first:
            q, k = self.position.rotate(q, span.ticks), self.position.rotate(k, span.ticks)
        features = self.mapped(q, k, before, boundaries)
        y, after = self._attended(features, v, before, boundaries, span.ticks)
        return Recurred(y.flatten(2).to(projected.dtype), after if features.peak is None else (*after, features.peak))

    def _attended(self, features: Features, v: Tensor, carried: Carried, boundaries: Boundaries,
                  ticks: Ticks) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [B,T,H,F], and S and z after the chunk, which are meaningless under a bidirectional mask."""
        q, k, before = features.q, features.k, carried[0]
        if not self.normalise:
            y, sums = self._summed(self._turned(q, ticks), self._turned(k, ticks), v, features, before, boundaries)
            return y, (sums,)
        earlier = None if carried[1] is None else carried[1][..., None]
        ones = v.new_ones(*v.shape[:3], 1)
        if self.rotates:
            y, sums = self._summed(self._turned(q, ticks), self._turned(k, ticks), v, features, before, boundaries)
            weight, normaliser = self._summed(q, k, ones, features, earlier, boundaries)
        else:
            both = None if before is None or earlier is None else torch.cat([before, earlier], -1)
            together, after = self._summed(q, k, torch.cat([v, ones], -1), features, both, boundaries)
            y, weight = together.split_with_sizes([v.shape[-1], 1], -1)
            sums, normaliser = after.split_with_sizes([v.shape[-1], 1], -1)
        return y / _positive(weight, boundaries.valid), (sums.contiguous(), normaliser[..., 0].contiguous())

    def _summed(self, q: Tensor, k: Tensor, v: Tensor, features: Features, before: Tensor | None,
                boundaries: Boundaries) -> tuple[Tensor, Tensor]:
        if self.causal:
            return linear_recurrence(q, k, v, features.log_decay, before, *boundaries)
        return bidirectional_sums(q, k, v, boundaries.starts, boundaries.valid), v

    def _turned(self, x: Tensor, ticks: Ticks) -> Tensor:
        return self.position.rotate(x, ticks) if self.rotates else x


def _positive(weight: Float[Tensor, "B T H 1"], valid: Bool[Tensor, "B T"] | None) -> Tensor:
    """Normalisers, at least the smallest normal number: a query whose products with all keys underflow has output 0."""
    floor = torch.finfo(weight.dtype).tiny
    return (weight if valid is None else weight.masked_fill(~valid[..., None, None], 1)).clamp(min=floor)
