"""A mixer from outside Weft: attention whose softmax has one more term, 1. It overrides one stage of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.key_value import ReadableKeys
from weft.ops.attention import AttentionCall


@register
class SinkAttentionConfig(AttentionConfig):
    """exp(s_ij) / (1 + sum_j exp(s_ij)): a softmax over the scores and a 0, whose weight goes nowhere, so that a head
    may look away. The field ``sinks`` of attention learns that number."""

    kind: ClassVar[str] = "sink_attention"
    about = replace(AttentionConfig.about,
        source="Miller 2023 (Attention is off by one); Xiao et al. 2024, section 3.3 (zero sink)",
        equation=r"p_{ij} = \frac{e^{s_{ij}}}{1 + \sum_{j' \in A(i)} e^{s_{ij'}}}",
        differs=(("attention", "the weights of a query may sum to less than 1, by a score of 0 that nothing has "
                               "learned."),))

    def build(self, dims: Dims) -> SinkAttention:
        sizes = self.sizes(dims)
        return SinkAttention(self, sizes, self.scheme(sizes.heads, sizes.d_head, dims), dims)

    @classmethod
    def examples(cls) -> list[Any]:
        return [cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "position": "alibi",
                                    "mask": "causal & window(4)"})]


class SinkAttention(Attention):
    """Attention with a sink of 0 in every head."""

    def call(self, q: Tensor, stored: ReadableKeys, span: Span) -> AttentionCall:
        return replace(super().call(q, stored, span), sinks=q.new_zeros(self.sizes.heads))
