"""The head with scores of classes for every token."""

from __future__ import annotations

from typing import ClassVar, Self

from jaxtyping import Float
from torch import Tensor

from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.heads.base import ClassifierConfig
from weft.heads.classifier import LinearClassifier


@register
class PerTokenConfig(ClassifierConfig):
    """scores = W h + b for each token: named entities, parts of speech; with ``transform`` W norm(f(V h + v)) + b
    (ModernBERT)."""

    kind: ClassVar[str] = "per_token"
    about = About(
        also_called=("token_classification", "tagging", "ner"),
        source="Devlin et al. 2019, section 5.3 (named entities)", equation="s_t = W h_t + b",
        differs=(("pooled", "scores every token in place of the row."),
                 ("masked_token", "predicts classes in place of tokens.")))

    def build(self, dims: Dims) -> PerTokenHead:
        if self.classes is None:
            raise dims.problem("n_classes", "missing.", "Say how many classes there are, or name them as labels.")
        return PerTokenHead(self, dims, self.classes)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_classes=3), cls(labels=("noun", "verb"), dropout=0.1),
                cls.model_validate({"n_classes": 3, "transform": True, "activation": "gelu", "transform_bias": False,
                                    "norm": {"kind": "layernorm", "bias": False}})]


class PerTokenHead(LinearClassifier):
    """The scores of every token's vector."""

    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B T C"]:
        return self.of_vectors(h)
