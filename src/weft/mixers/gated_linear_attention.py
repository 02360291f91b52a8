"""Gated linear attention: a decay for every feature of every token's key."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.config import PartField
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.mixers.gated_memory import GatedMemory
from weft.mixers.heads import HeadSizes
from weft.norms.base import NormConfig
from weft.norms.layernorm import LayerNormConfig
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.operator import widen


@register
class GatedLinearAttentionConfig(MixerConfig):
    """Linear attention without feature map and normaliser, whose state decays by what each token says.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's queries and keys; None: d_model / (2 n_heads), as in the paper.
        d_value: features of a head's values; None: d_model / n_heads.
        decay_rank: features between the two factors of the map from a token to its decays.
        decay_temperature: tau; the larger, the slower decays are at first.
        norm: of each head's result; the same weights for all heads.
    """

    kind: ClassVar[str] = "gated_linear_attention"
    about = About(
        also_called=("gla",), source="Yang et al. 2024 (GLA), equation 3 and section 4.4",
        equation=(r"S_t = \operatorname{diag}(a_t) S_{t-1} + k_t v_t^{\top}, \qquad a_t = \sigma(W_2 W_1 x_t + b)^{1 "
                  r"/ \tau}"),
        differs=(("retention", "decays depend on the token and differ by feature."),
                 ("linear_attention", "forgets, and has no normaliser."),
                 ("delta_net", "nothing is corrected.")),
        state_size="n_heads d_head d_value float32 numbers")

    n_heads: int = Field(default=4, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    decay_rank: int = Field(default=16, gt=0)
    decay_temperature: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = RMSNormConfig(eps=1e-5)

    def build(self, dims: Dims) -> GatedLinearAttention:
        sizes = []
        for name, given, divisor in (("d_head", self.d_head, 2 * self.n_heads),
                                     ("d_value", self.d_value, self.n_heads)):
            if given is None and dims.d_model % divisor:
                raise dims.problem(name, f"d_model {dims.d_model} does not divide by {divisor}, from which {name} "
                                   "follows.", f"Give {name}, or another number of heads.")
            sizes.append(dims.d_model // divisor if given is None else given)
        return GatedLinearAttention(self, HeadSizes(self.n_heads, self.n_heads, *sizes), dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2, decay_rank=3), cls(n_heads=3, d_head=2, d_value=5, decay_rank=2, decay_temperature=1.0,
                                            norm=LayerNormConfig())]


@final
class GatedLinearAttention(GatedMemory):
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T with a_t = sigmoid(x_t W_1 W_2 + b)^(1 / tau) for each of the H d_head
    features of keys, W_1 of ``rank`` columns; queries are scaled by 1 / sqrt(d_head)."""

    def __init__(self, config: GatedLinearAttentionConfig, sizes: HeadSizes, dims: Dims) -> None:
        super().__init__(sizes, 1 / math.sqrt(sizes.d_head), config.norm, True, dims)
        self.config = config
        self.narrow = Linear(dims.d_model, config.decay_rank, bias=False)
        self.wide = Linear(config.decay_rank, sizes.heads * sizes.d_head, bias=True)
        nn.init.zeros_(self.wide.bias)

    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H E"]:
        logits = self.wide(self.narrow(x))
        log_decay: Tensor = F.logsigmoid(widen(logits)) / self.config.decay_temperature
        return torch.unflatten(log_decay, -1, (self.sizes.heads, -1))
