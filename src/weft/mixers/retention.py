"""Multi-scale retention, the mixer of RetNet."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.mixers.base import MixerConfig
from weft.mixers.gated_linear_attention import GatedMemory
from weft.mixers.kernel_attention import rotation
from weft.mixers.self_attention import HeadSizes, head_sizes
from weft.norms.base import NormConfig
from weft.norms.layernorm import LayerNormConfig
from weft.positions.base import NoPositionConfig, PositionConfig
from weft.positions.frequencies import Constant
from weft.positions.rope import RopeConfig


@register
class RetentionConfig(MixerConfig):
    """Retention with a constant decay for each head, rotated queries and keys, a norm of each head and a gate.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's queries and keys; None: d_model / n_heads.
        d_value: features of a head's values; None: 2 d_head, as in the paper.
        position: the scheme that rotates queries and keys.
        norm: of each head's result, the group norm of the paper without learned weights; the same for all heads.
    """

    kind: ClassVar[str] = "retention"
    about = About(
        also_called=("retnet",), source="Sun et al. 2023 (RetNet), equations 6 to 8",
        equation=r"S_t = \gamma_h S_{t-1} + k_t v_t^{\top}, \qquad y_t = q_t S_t, \qquad \gamma_h = 1 - 2^{-5-h}",
        differs=(("linear_attention", "forgets at a constant pace, turns queries and keys, and has no feature map."),
                 ("gated_linear_attention", "decays do not depend on the token.")),
        state_size="n_heads d_head d_value float32 numbers")

    n_heads: int = Field(default=4, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    position: Annotated[PositionConfig, PartField("position")] = RopeConfig()
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = LayerNormConfig(weight=False, bias=False)

    def build(self, dims: Dims) -> Retention:
        sizes = head_sizes(self.n_heads, None, self.d_head, self.d_value, dims)
        if self.d_value is None:
            sizes = HeadSizes(sizes.heads, sizes.kv_heads, sizes.d_head, 2 * sizes.d_head)
        return Retention(self, sizes, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=3, d_head=4, d_value=5, position=RopeConfig(layout="half_split", base=50.0),
                                    norm=LayerNormConfig()),
                cls(n_heads=2, d_head=3, d_value=4, position=NoPositionConfig())]


class Retention(GatedMemory):
    """S_t = g_h S_{t-1} + k_t v_t^T with the decay g_h = 1 - 2^(-5-h) of head h = 0, 1, ..., H - 1, and queries and
    keys rotated by their positions; k is scaled by 1 / sqrt(d_head), here as a factor on q.

    The published code also divides scores by factors that depend on the token and that the norm cancels but for its
    epsilon, and in the recurrent form by others; here is neither, so that steps equal the whole. Its angles are
    10000^(-2i / (d_head - 2)), of which the last is 1 / 10000, where rotary positions have 10000^(-2i / d_head).
    """

    def __init__(self, config: RetentionConfig, sizes: HeadSizes, dims: Dims) -> None:
        super().__init__(sizes, 1 / math.sqrt(sizes.d_head), config.norm, False, dims)
        self.config = config
        self.position = rotation(config.position, dims, sizes.heads, sizes.d_head)
        self.decays = Constant([math.log1p(-2.0 ** (-5 - head)) for head in range(sizes.heads)])

    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "1 1 H 1"]:
        return self.decays.at(torch.promote_types(x.dtype, torch.float32))[None, None, :, None]

    def turned(self, x: Tensor, ticks: Ticks) -> Tensor:
        return self.position.rotate(x, ticks)
