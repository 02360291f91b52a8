"""DeltaNet: linear attention whose memory is corrected instead of added to."""

from __future__ import annotations

import math
from typing import ClassVar, Self, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.linear.linear import Linear
from weft.mixers.delta_memory import DeltaMemory, DeltaMemoryConfig
from weft.norms.layernorm import LayerNormConfig


@register
class DeltaNetConfig(DeltaMemoryConfig):
    """A memory that is corrected and does not decay. ``d_value`` None: d_head.

    Attributes:
        gate: whether each head's result is multiplied by a gate, silu of a linear map of the token.
    """

    kind: ClassVar[str] = "delta_net"
    about = About(
        title="DeltaNet", also_called=("deltanet", "delta_rule"),
        source="Yang et al. 2024b (arXiv:2406.06484), sections 2.2 and 3.3; Schlag et al. 2021, section 4.2",
        equation=(r"S_t = (I - \beta_t k_t k_t^{\top}) S_{t-1} + \beta_t k_t v_t^{\top}, \qquad y_t = W_o "
                  r"\operatorname{norm}(q_t S_t)"),
        differs=(("linear_attention", "a token replaces what its key returns, in place of adding to it."),
                 ("gated_delta_net", "nothing is forgotten but what is replaced.")),
        state_size="n_heads d_head d_value float32 numbers, and (kernel - 1) n_heads (2 d_head + d_value) numbers")

    gate: bool = False

    def build(self, dims: Dims) -> DeltaNet:
        return DeltaNet(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=3, d_head=2, d_value=3, d_conv=None, negative_eigenvalues=True, gate=True,
                                    norm=LayerNormConfig())]


@final
class DeltaNet(DeltaMemory):
    """S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T with beta_t = sigmoid(x_t W_b) of every head, and
    y = norm(q_t S_t) W_o. State: as `DeltaMemory` says."""

    def __init__(self, config: DeltaNetConfig, dims: Dims) -> None:
        super().__init__(config, config.sizes(dims), dims)
        self.config = config
        self.gate = Linear(dims.d_model, self.widths[2], bias=False) if config.gate else None
        if self.gate is None:
            # What is read has size one behind the norm, the root of the width times that of embeddings, which it would
            # hide. So an output begins with length one, as they do; a gate, which begins small, does as much.
            with torch.no_grad():
                self.output.weight.mul_(math.sqrt(3 / dims.d_model))

    def log_decay(self, x: Float[Tensor, "B T D"]) -> None:
        return None

    def gating(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"] | None:
        return None if self.gate is None else F.silu(self.gate(x))
