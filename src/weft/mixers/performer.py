"""Performer: softmax attention approximated by positive orthogonal random features (FAVOR+)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Clock
from weft.core.declarations import Declared, StepHooks
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried
from weft.core.registry import register
from weft.core.span import Boundaries, Memory
from weft.core.state import tensor_field
from weft.masks import Bidirectional
from weft.mixers.kernel_attention import Features, KernelAttention, KernelAttentionConfig, NormalisedState
from weft.ops.feature_maps import exponents, random_directions, running_maximum
from weft.positions.rope import RopeConfig


@register
class PerformerConfig(KernelAttentionConfig):
    """Softmax attention approximated by positive orthogonal random features, in time O(T) and with a state of fixed
    size.

    Attributes:
        n_features: M, the number of random features; None: the least multiple of d_head that is at least
            d_head ln d_head. The error of a weight falls with 1 / sqrt(M).
        redraw_every: steps of training after which new features are drawn, so that the weights do not fit one draw;
            None: never.
        rotate: whether positions rotate the ``features``, in the numerator alone, or the ``projections`` before the
            features are made, with which the mixer approximates softmax attention with such positions.
    """

    kind: ClassVar[str] = "performer"
    about = About(
        title="Performer attention", also_called=("favor", "favor+"),
        source=("Choromanski et al. 2021, equations 5 and 10 and section 3.2; Su et al. 2021, equation 19 (rotary "
                "positions)"),
        equation=(r"y_t = \frac{\phi(q_t) S_t}{\phi(q_t) z_t}, \qquad \phi(x) = \exp\left( \frac{W x}{E^{1/4}} - "
                  r"\frac{|x|^2}{2 \sqrt{E}} \right)"),
        differs=(("linear_attention", "random features whose products are on average the exponentials of softmax "
                                      "attention."),
                 ("attention", "approximates it, with a state of fixed size.")),
        state_size="n_kv_heads (n_features (d_value + 1) + 1) float32 numbers")

    n_features: int | None = Field(default=None, gt=0)
    redraw_every: int | None = Field(default=1000, gt=0)
    rotate: Literal["features", "projections"] = "features"

    def build(self, dims: Dims) -> Performer:
        size = self.sizes(dims).d_head
        features = size * max(1, math.ceil(math.log(size))) if self.n_features is None else self.n_features
        return Performer(self, features, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=4, n_kv_heads=2, d_head=4, d_value=3, n_features=6, bias="all",
                                    position=RopeConfig(), redraw_every=None),
                cls(n_heads=2, d_head=4, n_features=5, position=RopeConfig(), rotate="projections", bias="qkv"),
                cls(n_heads=2, n_kv_heads=1, d_head=4, n_features=7, mask=Bidirectional(), bias="output"),
                cls(n_heads=2, d_head=4, mask=Bidirectional(), position=RopeConfig(), redraw_every=3)]


@dataclass(frozen=True)
class PerformerState(NormalisedState):
    """Also the exponent by which the sums are scaled, the largest of the current document's keys so far: stored are
    exp(-peak) S and exp(-peak) z."""

    peak: Float[Tensor, "B K"] = tensor_field(keeps_dtype=True)


class Performer(KernelAttention, StepHooks):
    """y_t = phi(q_t) S_t / phi(q_t) z_t with phi(x) = exp(W x / E^(1/4) - |x|^2 / (2 sqrt(E))), whose products are on
    average exp(q.k / sqrt(E)). The rows of W are orthogonal in blocks of E, of the lengths of Gaussian vectors.

    The exponents are lowered by the largest of each query and, for keys, by the largest so far in the document, which
    the state holds; both cancel between numerator and denominator, and no epsilon is added, where the paper's code adds
    one that does not cancel and, under a causal mask, takes the largest over later keys too.

    W is the buffer ``directions`` [M,E], which all heads share, in float32 or better, and a part of checkpoints. It is
    drawn when the mixer is built, and again before every ``redraw_every``-th step of training, as a function of the
    run's seed, the mixer's place in the model and the step; evaluation and decoding never change it.
    """

    directions: Tensor
    state_type = PerformerState

    def __init__(self, config: PerformerConfig, features: int, dims: Dims) -> None:
        super().__init__(config, features, dims, rotate_first=config.rotate == "projections")
        self.config = config
        self.register_buffer("directions", random_directions(features, self.sizes.d_head, None, orthogonal=True))

    def declares(self) -> Declared:
        return replace(super().declares(), exact=(self.directions,))

    def begin_step(self, step: int, seed: int) -> None:
        every = self.config.redraw_every
        if every is None or step == 0 or step % every:
            return
        generator = torch.Generator().manual_seed(seed)
        count, size = self.directions.shape
        self.directions.copy_(random_directions(count, size, generator, orthogonal=True))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (*super().shapes(), (self.sizes.kv_heads,))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        state = super().start(clock, capacity=capacity, dtype=dtype, memory=memory)
        assert isinstance(state, PerformerState), "its type of states"
        return replace(state, peak=torch.full_like(state.peak, torch.finfo(state.peak.dtype).min))

    def mapped(self, q: Tensor, k: Tensor, before: Carried, boundaries: Boundaries) -> Features:
        of_query, of_key = (exponents(x, self.directions.to(x.dtype)) for x in (q, k))
        peaks, log_decay, last = self._peaks(of_key.detach().amax(-1), before, boundaries)
        lowered = of_key - peaks[..., None]
        if boundaries.valid is not None:
            lowered = lowered.masked_fill(~boundaries.valid[..., None, None], float("-inf"))
        return Features((of_query - of_query.detach().amax(-1, keepdim=True)).exp(), lowered.exp(), log_decay, last)

    def _peaks(self, largest: Float[Tensor, "B T K"], before: Carried,
               boundaries: Boundaries) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """By how much the exponents of each key are lowered [B,T,K], from its largest, the logarithm of the factor by
        which that scales the sums before it [B,T,K,1], and what the last token leaves [B,K]; both None where no token
        precedes another."""
        lowest = torch.finfo(largest.dtype).min
        if boundaries.valid is not None:
            largest = largest.masked_fill(~boundaries.valid[..., None], lowest)
        if not self.causal:
            return _largest_of_documents(largest, boundaries.starts), None, None
        first = (largest.new_full(largest[:, :1].shape, lowest) if before[2] is None
                 else before[2][:, None].to(largest.dtype))
        starts = None if boundaries.starts is None else torch.nn.functional.pad(boundaries.starts, (1, 0))
        after = running_maximum(torch.cat([first, largest], 1), starts)
        return after[:, 1:], (after[:, :-1] - after[:, 1:])[..., None], after[:, -1].clone()


def _largest_of_documents(x: Float[Tensor, "B T K"], starts: Tensor | None) -> Float[Tensor, "B T K"]:
    """The largest number of each token's document."""
    if starts is None:
        return x.amax(1, keepdim=True).expand_as(x)
    ends = torch.cat([starts[:, 1:], starts[:, :1]], 1).flip(1)
    return torch.maximum(running_maximum(x, starts), running_maximum(x.flip(1), ends).flip(1))
