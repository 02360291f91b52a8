"""RWKV-5 (Eagle): a matrix for each head with one learned decay for every feature."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.linear.linear import Linear
from weft.mixers.rwkv_heads import RwkvHeads, RwkvHeadsConfig, decay_schedule, matrix_bonus, rising
from weft.ops.linear_recurrence import delayed_recurrence
from weft.ops.operator import widen
from weft.ops.token_shift import previous_token


@register
class Rwkv5Config(RwkvHeadsConfig):
    """RWKV-5's time mixing.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's keys and values; None: d_model / n_heads. Released models have 64.
        norm_eps: of the norm of each head's result. Released code for training divides the result by 8 before a norm
            with 1e-5, which is the same as 64e-5 without the division.
    """

    kind: ClassVar[str] = "rwkv5"
    about = About(
        title="RWKV-5", also_called=("eagle",), source="Peng et al. 2024 (arXiv:2404.05892), sections 4.1.1 and 4.1.2",
        equation=(r"o_t = r_t \left( S_{t-1} + \operatorname{diag}(u) k_t^{\top} v_t \right), \qquad S_t = "
                  r"\operatorname{diag}(e^{-e^{w}}) S_{t-1} + k_t^{\top} v_t"),
        differs=(("rwkv4", "heads keep matrices, and there is no normaliser."),
                 ("rwkv6", "decays do not depend on the token."),
                 ("retention", "every feature has its own decay, and the current token a bonus.")),
        state_size="d_model numbers and n_heads d_head d_head float32 ones")

    def build(self, dims: Dims) -> Rwkv5:
        return Rwkv5(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=3, d_head=2, norm_eps=0.1)]


class Rwkv5(RwkvHeads):
    """Matrices with a decay and a bonus for every feature of a key, and a gate.

        r_t = W_r (mu_r x_t + (1 - mu_r) x_{t-1}), and k_t, v_t and g_t likewise
        o_t = r_t (S_{t-1} + diag(u) k_t^T v_t),   S_t = diag(exp(-exp(w))) S_{t-1} + k_t^T v_t
        y_t = W_o (silu(g_t) norm(o_t))

    x, y [B,T,D]; r, k, v, g have H heads of E features, A in all. ``decay`` and ``bonus`` are w and u [H,E]; ``mix_*``
    are the mu [D]; the norm is of each head by itself. x_{t-1} is zero at a document's first token. State: x at the
    last token [B,D], and S [B,H,E,E]. Decays, bonuses and mu start as in the released training code, by channel and
    layer; the linear maps start as all others do.
    """

    def __init__(self, config: Rwkv5Config, dims: Dims) -> None:
        super().__init__(config, dims)
        self.config = config
        self.gate = Linear(dims.d_model, self.width, bias=False)
        shape, earlier = (self.sizes.heads, self.sizes.d_head), 1.0 - self.depth.share
        self.decay = nn.Parameter(decay_schedule(self.width, self.depth, first=-6.0, span=5.0).view(shape))
        self.bonus = nn.Parameter(matrix_bonus(self.width, self.depth).view(shape))
        self.mix_key = nn.Parameter(rising(dims.d_model, earlier))
        self.mix_value = nn.Parameter(rising(dims.d_model, earlier) + 0.3 * self.depth.ratio)
        self.mix_receptance = nn.Parameter(rising(dims.d_model, 0.5 * earlier))
        self.mix_gate = nn.Parameter(rising(dims.d_model, 0.5 * earlier))

    def declares(self) -> Declared:
        return replace(super().declares(), dynamics=(self.decay, self.bonus))

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        previous = previous_token(x, before[0], span)
        r = self.receptance(torch.lerp(previous, x, self.mix_receptance))
        k = self.key(torch.lerp(previous, x, self.mix_key))
        v = self.value(torch.lerp(previous, x, self.mix_value))
        return x, F.silu(self.gate(torch.lerp(previous, x, self.mix_gate))), r, k, v

    def remembered(self, mapped: tuple[Tensor, ...], before: Tensor | None,
                   boundaries: Boundaries) -> tuple[Tensor, Tensor, None]:
        r, k, v = mapped
        log_decay = -widen(self.decay).exp()[None, None]
        o, sums = delayed_recurrence(self.heads(r), self.heads(k), self.heads(v), self.bonus, log_decay, before,
                                     *boundaries)
        return o, sums, None
