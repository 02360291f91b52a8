"""RWKV-4's time mixing: a decaying mean of values for each channel, behind a gate."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Memory, Span
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.mixers.rwkv_heads import Depth, RwkvState, decay_schedule, four_bonus, rising
from weft.ops.operator import widen
from weft.ops.token_shift import last_token, previous_token
from weft.ops.wkv import empty_state, wkv
from weft.ops.wkv_chunks import CHUNK

PROJECTIONS = MappingProxyType(dict.fromkeys(("key", "value", "receptance", "output"), "memory projections"))


@register
class Rwkv4Config(MixerConfig):
    """RWKV-4's time mixing. ``d_attention``: the number of channels whose values are averaged, d_model when it is left
    out.

    Attributes:
        d_attention: features A whose values are averaged; None: d_model.
    """

    kind: ClassVar[str] = "rwkv4"
    about = About(
        title="RWKV-4", also_called=("rwkv", "time_mix", "wkv"),
        source="Peng et al. 2023 (arXiv:2305.13048), section 3.1 and appendices D and E",
        equation=(r"wkv_t = \frac{\sum_{s < t} e^{-(t - 1 - s) w + k_s} v_s + e^{u + k_t} v_t}{\sum_{s < t} e^{-(t - "
                  r"1 - s) w + k_s} + e^{u + k_t}}, \qquad y_t = W_o (\sigma(r_t) \odot wkv_t)"),
        differs=(("rwkv5", "a channel keeps two sums, in place of a matrix for each head."),
                 ("linear_attention", "weights decay by channel, and the query is a gate.")),
        state_size="d_model numbers and 3 d_attention float32 ones")

    d_attention: int | None = Field(default=None, gt=0)

    def build(self, dims: Dims) -> Rwkv4:
        return Rwkv4(dims.d_model, dims.d_model if self.d_attention is None else self.d_attention, Depth.of(dims))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(d_attention=7)]


class Rwkv4(RecurrentLayer[tuple[Tensor, ...]]):
    """Values averaged over the document with weights that decay by channel, and a gate, the receptance.

        k_t = W_k (mu_k x_t + (1 - mu_k) x_{t-1}), and v_t and r_t likewise
        y_t = W_o (sigmoid(r_t) wkv_t),   wkv_t as in `weft.ops.wkv` with w = -exp(``decay``) and u = ``bonus``

    x, y [B,T,D]; ``key.weight``, ``value.weight``, ``receptance.weight`` [A,D], ``output.weight`` [D,A], no biases;
    ``decay`` and ``bonus`` [A]; ``mix_key``, ``mix_value``, ``mix_receptance`` are the mu [D]. x_{t-1} is zero at a
    document's first token. State: x at the last token [B,D], and the sums [B,3,A] of `weft.ops.wkv`.

    Decays, bonuses and mu start as in the released training code, by channel and layer (appendix E); the linear maps
    start as all others do, where that code has zeros for most. Implementations for inference halve the stream every six
    layers so that float16 does not overflow; here nothing is halved.
    """

    state_type = RwkvState

    def __init__(self, d_model: int, d_attention: int, depth: Depth) -> None:
        super().__init__()
        self.d_attention = d_attention
        self.decay = nn.Parameter(decay_schedule(d_attention, depth, first=-5.0, span=8.0))
        self.bonus = nn.Parameter(four_bonus(d_attention))
        ramp = rising(d_model, 1.0 - depth.share)
        self.mix_key, self.mix_value = nn.Parameter(ramp), nn.Parameter(ramp + 0.3 * depth.ratio)
        self.mix_receptance = nn.Parameter(rising(d_model, 0.5 * (1.0 - depth.share)))
        self.key, self.value = Linear(d_model, d_attention, bias=False), Linear(d_model, d_attention, bias=False)
        self.receptance = Linear(d_model, d_attention, bias=False)
        self.output = Linear(d_attention, d_model, bias=False)

    def declares(self) -> Declared:
        return Declared(role="memory", child_roles=PROJECTIONS, borders=(CHUNK,), dynamics=(self.decay, self.bonus))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.mix_key.shape[0],), (3, self.d_attention)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        state = super().start(clock, capacity=capacity, dtype=dtype, memory=memory)
        assert isinstance(state, RwkvState), "its type of states"
        return replace(state, sums=empty_state(state.sums))

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        previous = previous_token(x, before[0], span)
        return (x, self.key(torch.lerp(previous, x, self.mix_key)),
                self.value(torch.lerp(previous, x, self.mix_value)),
                self.receptance(torch.lerp(previous, x, self.mix_receptance)))

    def recur(self, projected: tuple[Tensor, ...], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        (x, k, v, r), (last, sums) = projected, before
        mean, after = wkv(k, v, -widen(self.decay).exp(), self.bonus, sums, boundaries.starts, boundaries.valid)
        return Recurred(torch.sigmoid(r) * mean.to(r.dtype),
                        (None if last is None else last_token(x, last, span), after))
