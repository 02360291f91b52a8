"""Kimi Delta Attention: a memory that is corrected and decays by feature."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.linear.linear import Linear
from weft.mixers.delta_memory import DeltaMemory, DeltaMemoryConfig, time_steps
from weft.norms.layernorm import LayerNormConfig
from weft.ops.operator import widen


@register
class KimiDeltaConfig(DeltaMemoryConfig):
    """A memory that is corrected, and whose features of keys forget each at its own pace. ``d_value`` None: d_head.

    Attributes:
        rank: features between the two factors of the maps from a token to its decays and to its gate; None: the size of
            values.
    """

    kind: ClassVar[str] = "kimi_delta"
    about = About(
        title="Kimi delta attention", also_called=("kda", "kimi_delta_attention", "kimi_linear"),
        source="Kimi Team 2025 (Kimi Linear, arXiv:2510.26692), equation 1 and section 3",
        equation=r"S_t = (I - \beta_t k_t k_t^{\top}) \operatorname{diag}(\alpha_t) S_{t-1} + \beta_t k_t v_t^{\top}",
        differs=(("gated_delta_net", "every feature of a key forgets at its own pace."),
                 ("rwkv7", "removes and writes by the same key.")),
        state_size="n_heads d_head d_value float32 numbers, and (kernel - 1) n_heads (2 d_head + d_value) numbers")

    rank: int | None = Field(default=None, gt=0)

    def build(self, dims: Dims) -> KimiDelta:
        return KimiDelta(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=3, d_head=2, d_value=3, rank=1, d_conv=2, negative_eigenvalues=True,
                                    norm=LayerNormConfig())]


@final
class KimiDelta(DeltaMemory):
    """S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_{t-1} + beta_t k_t v_t^T with beta_t = sigmoid(x_t W_b) of every
    head, alpha_t = exp(-exp(A) softplus(x_t W_1 W_2 + d)) of every feature, A one number for each head, and
    y = (sigmoid(x_t W_3 W_4 + c) norm(q_t S_t)) W_o.

    At first exp(A) is uniform between 1 and 16, and the softplus of d log-uniform between 0.001 and 0.1. A and d take
    no weight decay. State: as `DeltaMemory` says.
    """

    def __init__(self, config: KimiDeltaConfig, dims: Dims) -> None:
        super().__init__(config, config.sizes(dims), dims)
        self.config = config
        rank = self.sizes.d_value if config.rank is None else config.rank
        self.narrow_decay = Linear(dims.d_model, rank, bias=False)
        self.wide_decay = Linear(rank, self.widths[1], bias=False)
        self.log_rate = nn.Parameter(torch.empty(self.sizes.heads).uniform_(1, 16).log())
        self.decay_bias = nn.Parameter(time_steps(self.widths[1]))
        self.narrow_gate = Linear(dims.d_model, rank, bias=False)
        self.wide_gate = Linear(rank, self.widths[2], bias=True)

    def declares(self) -> Declared:
        return replace(super().declares(), dynamics=(self.log_rate, self.decay_bias))

    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H E"]:
        steps: Tensor = F.softplus(widen(self.wide_decay(self.narrow_decay(x))) + widen(self.decay_bias))
        return -widen(self.log_rate).exp()[:, None] * torch.unflatten(steps, -1, (self.sizes.heads, -1))

    def gating(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        gate: Tensor = self.wide_gate(self.narrow_gate(x))
        return gate.sigmoid()
