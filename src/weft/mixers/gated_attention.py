"""Attention whose heads' results pass a gate."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from jaxtyping import Float
from torch import Tensor

from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Output, Span
from weft.linear.linear import Linear
from weft.masks import Causal, Window
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.self_attention import HeadSizes, ScoreSettings, attend
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.attention import ATTENTION
from weft.positions.base import PositionScheme
from weft.positions.rope import RopeConfig


@register
class GatedAttentionConfig(AttentionConfig):
    """Attention, and a gate on what its heads return: y = (sigmoid(x W_g) heads(x)) W_o. The gate has a number for
    every feature of every head, and a bias where ``bias`` gives one to queries, keys and values.

    A head may return nothing for a token, so that none has to attend to a token without content."""

    kind: ClassVar[str] = "gated_attention"
    about = replace(AttentionConfig.about,
        source="Qiu et al. 2025 (arXiv:2505.06708), section 2.2 (G1, element-wise); Qwen3-Next",
        equation=r"y = W_o \left( \sigma(W_g x) \odot \operatorname{heads}(x) \right)",
        differs=(("attention", "a gate on what the heads return, so that none has to attend to anything."),))

    def build(self, dims: Dims) -> GatedAttention:
        sizes = self.sizes(dims)
        return GatedAttention(self, sizes, self.scheme(sizes.heads, sizes.d_head, dims), dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2, n_kv_heads=1, d_head=4, qk_norm=RMSNormConfig(unit_offset=True),
                    position=RopeConfig(rot=2)),
                cls(n_heads=2, d_value=3, bias="all", mask=Causal() & Window(5), scores=ScoreSettings(dropout=0.25))]


class GatedAttention(Attention):
    """As `Attention`, whose results [B,T,H,F] are multiplied by sigmoid(x W_g) before the output projection."""

    def __init__(self, config: GatedAttentionConfig, sizes: HeadSizes, position: PositionScheme, dims: Dims) -> None:
        super().__init__(config, sizes, position, dims)
        self.gate = Linear(dims.d_model, sizes.heads * sizes.d_value, bias=config.bias in ("qkv", "all"))

    def declares(self) -> Declared:
        declared = super().declares()
        return replace(declared, child_roles={**declared.child_roles, "gate": "attention projections"})

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        q, k, v = self.project(x, span.ticks)
        stored = self.store(state, k, v, span)
        call = self.call(q, stored, span)
        y = ATTENTION(call, self.form) if self.asked is None else attend(self, call, self.form)
        gate: Tensor = self.gate(x)
        return Output(self.mix(y * gate.sigmoid().unflatten(-1, (self.sizes.heads, -1))), stored.state)
