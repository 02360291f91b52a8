"""A mixer from outside Weft: attention with a learned sink in each head. It overrides one stage of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.key_value import Stored
from weft.ops.attention import AttentionCall


@register
class SinkAttentionConfig(AttentionConfig):
    """softmax over the scores and one more number of each head, whose weight goes nowhere: a head may look away."""

    kind: ClassVar[str] = "sink_attention"
    source: ClassVar[str] = "Agarwal et al. 2025 (gpt-oss), section 2.1; Xiao et al. 2024, section 3"

    def build(self, dims: Dims) -> SinkAttention:
        sizes = self.sizes(dims)
        return SinkAttention(self, sizes, self.scheme(sizes.heads, sizes.d_head, dims), dims)

    @classmethod
    def examples(cls) -> list[Any]:
        return [cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "position": "alibi",
                                    "mask": "causal & window(4)"})]


class SinkAttention(Attention):
    """Attention with sinks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sinks = nn.Parameter(torch.zeros(self.sizes.heads))

    def call(self, q: Tensor, stored: Stored, span: Span) -> AttentionCall:
        return replace(super().call(q, stored, span), sinks=self.sinks)
