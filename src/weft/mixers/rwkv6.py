"""RWKV-6 (Finch): a matrix for each head whose decays, and whose token shift, depend on the token."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
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

SMALL = 0.01
"""Bound of the initial weights of maps from a low rank."""


@register
class Rwkv6Config(RwkvHeadsConfig):
    """RWKV-6's time mixing.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's keys and values; None: d_model / n_heads. Released models have 64.
        norm_eps: of the norm of each head's result.
        shift_rank: features between the two factors of the map from a token to each of its five mixes with the one
            before it; released models of 7 billion parameters have 64.
        decay_rank: features between the two factors of the map from a token to its decays; released models of 7
            billion parameters have 128.
    """

    kind: ClassVar[str] = "rwkv6"
    about = About(
        title="RWKV-6", also_called=("finch",), source="Peng et al. 2024 (arXiv:2404.05892), sections 4.2.1 and 4.2.2",
        equation=(r"o_t = r_t \left( S_{t-1} + \operatorname{diag}(u) k_t^{\top} v_t \right), \qquad S_t = "
                  r"\operatorname{diag}(e^{-e^{w_t}}) S_{t-1} + k_t^{\top} v_t"),
        differs=(("rwkv5", "decays and the mixing with the token before depend on the token."),
                 ("gated_linear_attention", "the current token has a bonus, and the token before is mixed in."),
                 ("rwkv7", "nothing is corrected.")),
        state_size="d_model numbers and n_heads d_head d_head float32 ones")

    shift_rank: int = Field(default=32, gt=0)
    decay_rank: int = Field(default=64, gt=0)

    def build(self, dims: Dims) -> Rwkv6:
        return Rwkv6(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2, shift_rank=3, decay_rank=2), cls(n_heads=3, d_head=2, shift_rank=2, decay_rank=3)]


class Rwkv6(RwkvHeads):
    """Matrices whose features decay by what each token says, and a gate.

        d_t = x_{t-1} - x_t,   n_t = x_t + mu_x d_t
        x^c_t = x_t + (mu_c + tanh(n_t A_c) B_c) d_t          for each c of w, k, v, r, g
        k_t = W_k x^k_t, and v_t, r_t and g_t likewise;   w_t = w + tanh(x^w_t A) B
        o_t = r_t (S_{t-1} + diag(u) k_t^T v_t),   S_t = diag(exp(-exp(w_t))) S_{t-1} + k_t^T v_t
        y_t = W_o (silu(g_t) norm(o_t))

    x, y [B,T,D]; r, k, v, g and w have H heads of E features, A in all. ``shift_first`` is mu_x [D] and ``shift`` the
    other mu [5,D] in the order above; ``shift_narrow.weight`` [5 R,D] holds the A_c and ``shift_wide`` [5,R,D] the B_c;
    ``decay`` and ``bonus`` are w and u [H,E]. x_{t-1} is zero at a document's first token. State: x at the last token
    [B,D], and S [B,H,E,E]. Decays, bonuses and mu start as in the released training code; maps to a low rank start as
    all linear maps do, where that code has zeros.
    """

    def __init__(self, config: Rwkv6Config, dims: Dims) -> None:
        super().__init__(config, dims)
        self.config = config
        self.gate = Linear(dims.d_model, self.width, bias=False)
        shape, width, depth = (self.sizes.heads, self.sizes.d_head), dims.d_model, self.depth
        self.decay = nn.Parameter(decay_schedule(self.width, depth, first=-6.0, span=5.0).view(shape))
        self.bonus = nn.Parameter(matrix_bonus(self.width, depth).view(shape))
        ramp, root = rising(width, 1.0 - depth.share), rising(width, 0.5 * (1.0 - depth.share))
        self.shift_first = nn.Parameter(1 - ramp)
        self.shift = nn.Parameter(1 - torch.stack([ramp, ramp, ramp + 0.3 * depth.ratio, root, root]))
        self.shift_narrow = Linear(width, 5 * config.shift_rank, bias=False)
        self.shift_wide = nn.Parameter(torch.empty(5, config.shift_rank, width).uniform_(-SMALL, SMALL))
        self.decay_narrow = Linear(width, config.decay_rank, bias=False)
        self.decay_wide = Linear(config.decay_rank, self.width, bias=False)
        nn.init.uniform_(self.decay_wide.weight, -SMALL, SMALL)

    def declares(self) -> Declared:
        return replace(super().declares(), dynamics=(self.decay, self.bonus))

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        fading, *mixed = self.shifted(x, previous_token(x, before[0], span) - x)
        k, v, r = self.key(mixed[0]), self.value(mixed[1]), self.receptance(mixed[2])
        return x, F.silu(self.gate(mixed[3])), r, k, v, self.decay_wide(torch.tanh(self.decay_narrow(fading)))

    def remembered(self, mapped: tuple[Tensor, ...], before: Tensor | None,
                   boundaries: Boundaries) -> tuple[Tensor, Tensor, None]:
        r, k, v, rates = mapped
        log_decay = -(widen(self.decay) + self.heads(rates)).exp()
        o, sums = delayed_recurrence(self.heads(r), self.heads(k), self.heads(v), self.bonus, log_decay, before,
                                     *boundaries)
        return o, sums, None

    def shifted(self, x: Float[Tensor, "B T D"], away: Float[Tensor, "B T D"]) -> tuple[Tensor, ...]:
        """The mixes x^c of each token with the one before it, five of [B,T,D]."""
        narrow = torch.tanh(self.shift_narrow(torch.addcmul(x, self.shift_first, away))).unflatten(-1, (5, -1))
        shares = torch.einsum("btcr,crd->cbtd", narrow, self.shift_wide) + self.shift[:, None, None]
        return tuple(torch.addcmul(x, share, away) for share in shares.unbind())
