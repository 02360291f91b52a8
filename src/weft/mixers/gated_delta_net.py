"""Gated DeltaNet: a memory that is corrected and decays by head."""

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
class GatedDeltaNetConfig(DeltaMemoryConfig):
    """A memory that is corrected, and whose heads forget by what each token says. ``d_value`` None: 2 d_head, as in the
    paper.

    Attributes:
        n_value_heads: heads of values, each with a memory of its own; a multiple of n_heads, whose queries and keys
            consecutive ones share (Qwen3-Next has twice as many); None: n_heads.
        gate: whether each head's result is multiplied by a gate, silu of a linear map of the token.
    """

    kind: ClassVar[str] = "gated_delta_net"
    about = About(
        title="gated DeltaNet", also_called=("gated_deltanet", "gdn"),
        source="Yang et al. 2025 (arXiv:2412.06464), equation 10 and section 3.4",
        equation=(r"S_t = \alpha_t (I - \beta_t k_t k_t^{\top}) S_{t-1} + \beta_t k_t v_t^{\top}, \qquad \alpha_t = "
                  r"e^{-e^{A} \operatorname{softplus}(W_a x_t + d)}"),
        differs=(("delta_net", "heads also forget, by what each token says."),
                 ("kimi_delta", "one decay for a head in place of one for each feature."),
                 ("mamba2", "what is stored is corrected, and not only added to.")),
        state_size=("n_value_heads d_head d_value float32 numbers, and (kernel - 1) (2 n_heads d_head + n_value_heads "
                    "d_value) numbers"))

    n_value_heads: int | None = Field(default=None, gt=0)
    gate: bool = True

    def build(self, dims: Dims) -> GatedDeltaNet:
        return GatedDeltaNet(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2, n_value_heads=4, d_value=3),
                cls(n_heads=3, d_head=2, d_conv=2, negative_eigenvalues=True, gate=False, norm=LayerNormConfig())]


@final
class GatedDeltaNet(DeltaMemory):
    """S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T with beta_t = sigmoid(x_t W_b),
    alpha_t = exp(-exp(A) softplus(x_t W_a + d)) of every value head, and y = (silu(x_t W_g) norm(q_t S_t)) W_o.

    At first exp(A) is uniform between 0.01 and 16, and the softplus of d log-uniform between 0.001 and 0.1; released
    code begins at 0, whose logarithm is infinite, or sets d to 1. A and d take no weight decay. State: as `DeltaMemory`
    says.
    """

    def __init__(self, config: GatedDeltaNetConfig, dims: Dims) -> None:
        super().__init__(config, config.sizes(dims, config.n_value_heads, 2), dims)
        self.config = config
        heads = self.sizes.value_heads
        self.decay = Linear(dims.d_model, heads, bias=False)
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(0.01, 16).log())
        self.decay_bias = nn.Parameter(time_steps(heads))
        self.gate = Linear(dims.d_model, self.widths[2], bias=False) if config.gate else None

    def declares(self) -> Declared:
        return replace(super().declares(), dynamics=(self.log_rate, self.decay_bias))

    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H 1"]:
        steps = F.softplus(widen(self.decay(x)) + widen(self.decay_bias))
        return (-widen(self.log_rate).exp() * steps)[..., None]

    def gating(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"] | None:
        return None if self.gate is None else F.silu(self.gate(x))
