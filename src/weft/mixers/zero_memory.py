"""Attention whose sequences begin after a memory of zeros, as Transformer-XL's do in its released TensorFlow code."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.masks import Causal, Mask, MaskField, Window
from weft.masks.terms import Key, Query
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.key_value import ReadableKeys
from weft.mixers.self_attention import HeadSizes
from weft.ops.attention import AttentionCall
from weft.positions.base import PositionConfig, PositionScheme
from weft.positions.transformer_xl import TransformerXl, TransformerXlConfig


@register
class ZeroMemoryAttentionConfig(AttentionConfig):
    """Attention with a vector of zeros at every position before the first token of a document. Their keys and values
    are zero, and their scores those of their distance alone, (q_i + v) . W_r R_(i-j) / root of d_head, so those that
    the mask lets a query see take weight and add nothing.

    The paper's segments begin with an empty memory (`attention`). The released TensorFlow code, with which the
    published models were trained, and the class in transformers begin with a memory of zeros, whose outputs differ as
    long as a query sees some of them: for the first tokens of a document, and in L layers for those within L times
    the reach of the mask.

    Attributes:
        mask: one that hides keys from some distance on: ``causal & window(m)``, ``segments(t, m)``.
        position: a ``transformer_xl``.
    """

    kind: ClassVar[str] = "zero_memory_attention"
    about = replace(AttentionConfig.about,
        source="Dai et al. 2019, its released code (tf/train.py, which starts from np.zeros)",
        equation=(r"y_i = \sum_{j \in A(i)} p_{ij} v_j, \qquad p_{ij} = \frac{e^{s_{ij}}}{\sum_{j' \in A(i)} "
                  r"e^{s_{ij'}} + \sum_{j' < \operatorname{begin}} e^{(q_i + v) \cdot W_r R_{i-j'}}}"),
        differs=(("attention", "zeros before the document's first token take weight and add nothing."),))

    mask: Annotated[Mask, MaskField()] = Causal() & Window(128)
    position: Annotated[PositionConfig, PartField("position")] = TransformerXlConfig()

    def build(self, dims: Dims) -> ZeroMemoryAttention:
        sizes = self.sizes(dims)
        return ZeroMemoryAttention(self, sizes, self.scheme(sizes.heads, sizes.d_head, dims), dims)

    def sizes(self, dims: Dims) -> HeadSizes:
        sizes = super().sizes(dims)
        for name, wrong in (("bias", self.bias not in ("none", "output")), ("qk_norm", self.qk_norm is not None),
                            ("sinks", self.sinks)):
            if wrong:
                raise dims.problem(name, "keys and values of zeros would not be zero, or not the only ones without a "
                                   "value.", "Leave it out, or use the kind attention.")
        if self.backend not in ("auto", "reference"):
            raise dims.problem("backend", f"the form {self.backend!r} has no sinks that differ by query.",
                               "Use 'auto' or 'reference'.")
        if self.mask.reach() is None or not self.mask.causal() or self.mask.heads() > 1 or self.mask.reads():
            raise dims.problem("mask", f"{self.mask!r} hides no keys by their distance alone, or lets a query see "
                               "later tokens.",
                               "Give causal & window(m) or segments(t, m).")
        return sizes

    def scheme(self, heads: int, size: int, dims: Dims) -> PositionScheme:
        scheme = super().scheme(heads, size, dims)
        if not isinstance(scheme, TransformerXl):
            raise dims.problem("position", f"the scores of zeros under {self.position.kind!r} are not known here.",
                               "Give a transformer_xl.")
        return scheme

    @classmethod
    def examples(cls) -> list[Any]:
        return [cls.model_validate({"n_heads": 2, "d_head": 4, "mask": mask, "bias": bias, "scores": {"dropout": 0.25},
                                    "position": {"kind": "transformer_xl", "std": 0.5, "max_distance": clamp}})
                for mask, clamp, bias in (("causal & window(5)", None, "none"), ("segments(4, 3)", 4, "output"))]


class ZeroMemoryAttention(Attention):
    """Attention with one more score for each query, the logarithm of the sum of the exponentials of the zeros' scores.

    It takes as many operations as the scores of so many keys, at every token, also where no zeros are seen.
    """

    def call(self, q: Float[Tensor, "B T H E"], stored: ReadableKeys, span: Span) -> AttentionCall:
        return replace(super().call(q, stored, span), sinks=self._zeros(q, span.ticks))

    def _zeros(self, q: Float[Tensor, "B T H E"], ticks: Ticks) -> Float[Tensor, "B T H"]:
        """The score that stands for all zeros together; that of a query that sees none is as low as can be."""
        scheme, reach = self.position, self.mask.reach()
        assert isinstance(scheme, TransformerXl) and reach is not None, "the configuration is checked"
        distance = torch.arange(1, max(reach, 2), device=q.device)
        scores = scheme.of_distances(q, distance)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        hidden = ~self._seen(ticks, distance)
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).logsumexp(-1).transpose(1, 2)

    def _seen(self, ticks: Ticks, distance: Tensor) -> Tensor:
        """Whether the place so far before a query lies before its document and is visible, [#B,1,T,L]."""
        order, begin, end = (each[:, None, :, None] for each in (ticks.order, ticks.begin, ticks.prefix_end))
        key = order - distance
        seen = self.mask.rule(Query(order, begin, end), Key(key, begin, None), torch.zeros_like(distance[:1]))
        return seen & (key < begin)
