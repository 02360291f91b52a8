"""RWKV-7 (Goose): a matrix for each head that follows a delta rule with decays and rates that depend on the token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Channel, Declared
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.recurrent_layer import Carried, Recurred
from weft.core.registry import register
from weft.core.span import Boundaries, Given, Span
from weft.linear.linear import Linear
from weft.mixers.rwkv_heads import RwkvHeads, RwkvHeadsConfig, line, rising, seven_decay, within_heads
from weft.ops.delta_rule import delta_rule
from weft.ops.operator import widen
from weft.ops.token_shift import previous_token

VALUES = "rwkv_values"
"""The channel of the first layer's values."""
FASTEST = math.exp(-0.5)
"""The largest decay of a feature in one token, as a negative logarithm."""
POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)


@register
class Rwkv7Config(RwkvHeadsConfig):
    """RWKV-7's time mixing. The ranks' defaults are those of the released training code: the nearest multiple of 32, at
    least 32, to 1.8 sqrt(d_model), 1.8 sqrt(d_model), 1.3 sqrt(d_model) and 0.6 d_model^0.8.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's keys and values; None: d_model / n_heads. Released models have 64.
        norm_eps: of the norm of each head's result.
        value_residual: whether values are mixed with those of the nearest earlier layer that has this set to false, the
            model's first. Such a layer gives its values to later ones.
        decay_rank: features between the two factors of the map from a token to its decays.
        rate_rank: features between the two factors of the map from a token to its in-context learning rates.
        value_rank: features between the two factors of the map from a token to the shares of its values that are
            replaced; without meaning where value_residual is false.
        gate_rank: features between the two factors of the map from a token to the gate.
    """

    kind: ClassVar[str] = "rwkv7"
    about = About(
        title="RWKV-7", also_called=("goose",), source="Peng et al. 2025 (arXiv:2503.14456), section 4",
        equation=(r"S_t = S_{t-1} \left( \operatorname{diag}(d_t) - \kappa_t^{\top} (a_t \odot \kappa_t) \right) + "
                  r"v_t^{\top} k_t"),
        differs=(("rwkv6", "what is stored can be removed, by a key of its own."),
                 ("kimi_delta", "the key that removes and the one that writes differ, and rates differ by feature.")),
        state_size="d_model numbers and n_heads d_head d_head float32 ones")

    value_residual: bool = False
    decay_rank: int | None = Field(default=None, gt=0)
    rate_rank: int | None = Field(default=None, gt=0)
    value_rank: int | None = Field(default=None, gt=0)
    gate_rank: int | None = Field(default=None, gt=0)

    def build(self, dims: Dims) -> Rwkv7:
        return Rwkv7(self, dims)

    def giver(self) -> ModuleConfig | None:
        return self.with_(value_residual=False) if self.value_residual else None

    @classmethod
    def examples(cls) -> list[Self]:
        ranks = {"decay_rank": 2, "rate_rank": 3, "value_rank": 2, "gate_rank": 4}
        return [cls.model_validate({"n_heads": 2, **ranks}),
                cls.model_validate({"n_heads": 3, "d_head": 2, "value_residual": True, **ranks})]


def _rank(given: int | None, factor: float, width: int, power: float = 0.5) -> int:
    return max(32, round(factor * width ** power / 32) * 32) if given is None else given


class LowRankMap(nn.Module):
    """bias + act(x A) B, with A of ``rank`` columns and act the hyperbolic tangent or nothing."""

    def __init__(self, width: int, rank: int, bias: Tensor, *, tanh: bool = False) -> None:
        super().__init__()
        self.tanh = tanh
        self.narrow, self.wide = Linear(width, rank, bias=False), Linear(rank, len(bias), bias=False)
        nn.init.normal_(self.wide.weight, std=0.1 / math.sqrt(len(bias)))
        self.bias = nn.Parameter(bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T A"]:
        """In float32 or better after the second map."""
        narrow = self.narrow(x)
        y: Tensor = widen(self.wide(torch.tanh(narrow) if self.tanh else narrow)) + widen(self.bias)
        return y


class Rwkv7(RwkvHeads):
    """A delta rule whose removal key, rate and decay are vectors that depend on the token.

        x^c_t = x_t + mu_c (x_{t-1} - x_t)                    for each c of r, w, k, v, a, g
        r_t = W_r x^r_t, and k_t and v_t likewise;   g_t = sigmoid(x^g_t A_g) B_g
        d_t = exp(-e^(-1/2) sigmoid(w + tanh(x^w_t A_w) B_w)),   a_t = sigmoid(a + x^a_t A_a B_a)
        v_t <- v_t + sigmoid(v + x^v_t A_v B_v) (v^first_t - v_t)        with value_residual
        kappa_t = (xi k_t) / |xi k_t| of each head,   k_t <- k_t (1 + alpha (a_t - 1))
        S_t = S_{t-1} (diag(d_t) - kappa_t^T (a_t kappa_t)) + v_t^T k_t
        y_t = W_o (g_t (norm(S_t r_t) + (r_t . rho k_t) v_t))

    x, y [B,T,D]; r, k, v, d, a and g have H heads of E features, A in all. ``shift`` [6,D] are the mu in that order;
    ``decay``, ``rate`` and ``share`` hold w, a and v with their maps of low rank; ``key_scale`` and ``key_rate`` [A]
    are xi and alpha, ``bonus`` [H,E] is rho. x_{t-1} is zero at a document's first token. State: x at the last token
    [B,D], and the transpose of S [B,H,E,E]. Vectors start as in the released training code, by channel and layer; maps
    to a low rank start as all linear maps do, where that code has zeros.
    """

    def __init__(self, config: Rwkv7Config, dims: Dims) -> None:
        super().__init__(config, dims)
        self.config = config
        width, size, depth = dims.d_model, self.width, self.depth
        ramps = [1 - rising(width, power * (1.0 - depth.share)) for power in POWERS]
        self.shift = nn.Parameter(torch.stack(ramps))
        centred, curved = line(size) - 0.5, within_heads(size, self.sizes.d_head)
        self.decay = LowRankMap(width, _rank(config.decay_rank, 1.8, width), seven_decay(size, depth) + 2.5 * curved,
                                tanh=True)
        self.rate = LowRankMap(width, _rank(config.rate_rank, 1.8, width), 0.3 * curved + 0.4 * centred - 0.19)
        self.share = LowRankMap(width, _rank(config.value_rank, 1.3, width),
                                0.73 - 0.4 * centred) if config.value_residual else None
        rank = _rank(config.gate_rank, 0.6, width, 0.8)
        self.gate_narrow, self.gate_wide = Linear(width, rank, bias=False), Linear(rank, size, bias=False)
        self.key_scale = nn.Parameter(0.71 - 0.1 * centred)
        self.key_rate = nn.Parameter(torch.full((size,), 1.02))
        self.bonus = nn.Parameter(torch.full((self.sizes.heads, self.sizes.d_head), -0.04))

    def declares(self) -> Declared:
        channel, takes = (Channel(VALUES, (self.sizes.heads, self.sizes.d_head)),), self.config.value_residual
        return replace(super().declares(), dynamics=(self.decay.bias, self.bonus),
                       gives=() if takes else channel, takes=channel if takes else ())

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        away, mixed = previous_token(x, before[0], span) - x, []
        for share in self.shift.unbind():
            mixed.append(torch.addcmul(x, share, away))
        reading, fading, keyed, valued, rated, gated = mixed
        r, k, v = self.receptance(reading), self.key(keyed), self.value(valued)
        if self.share is not None:
            v = torch.lerp(v, span.take(VALUES), torch.sigmoid(self.share(valued)).to(v.dtype))
        log_decay, rate = -FASTEST * torch.sigmoid(self.decay(fading)), torch.sigmoid(self.rate(rated))
        gate = self.gate_wide(torch.sigmoid(self.gate_narrow(gated)))
        return x, gate, v, r, k, log_decay, rate

    def remembered(self, mapped: tuple[Tensor, ...], before: Tensor | None,
                   boundaries: Boundaries) -> tuple[Tensor, Tensor, Tensor]:
        v, r, k, log_decay, rate = mapped
        k = widen(k)
        kappa = F.normalize(self.heads(k * widen(self.key_scale)), dim=-1)
        k = self.heads(k * (1 + (rate - 1) * widen(self.key_rate)))
        r, v = self.heads(r), self.heads(v)
        o, sums = delta_rule(r, k, v, -kappa, kappa * self.heads(rate), self.heads(log_decay), before, *boundaries)
        return o, sums, (r * k * widen(self.bonus)).sum(-1, keepdim=True) * v

    def recur(self, projected: tuple[Tensor, ...], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        done = super().recur(projected, before, boundaries, span)
        return done._replace(given=(Given(VALUES, projected[2]),)) if self.share is None else done
