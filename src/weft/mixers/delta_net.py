"""DeltaNet: linear attention whose memory is corrected instead of added to.

Gated DeltaNet: a memory that is corrected and decays by head.

Kimi Delta Attention: a memory that is corrected and decays by feature.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

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
