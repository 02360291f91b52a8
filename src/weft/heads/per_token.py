"""The head with scores of classes for every token."""

from __future__ import annotations

from typing import ClassVar, Self

from jaxtyping import Float
from torch import Tensor, nn

from weft.core.model import Classifier
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.heads.base import ClassifierConfig
from weft.linear.linear import Linear
from weft.ops.dropout import Dropout

STD = 0.02
"""Standard deviation of the initial weights of classifiers (Devlin et al. 2019, their code)."""


def linear_scores(d_model: int, n_outputs: int) -> Linear:
    """The last map of a classifier, initialised with small weights and a bias of zero."""
    scores = Linear(d_model, n_outputs)
    nn.init.normal_(scores.weight, std=STD)
    nn.init.zeros_(scores.bias)
    return scores


@register
class PerTokenConfig(ClassifierConfig):
    """scores = W h + b for each token: named entities, parts of speech."""

    kind: ClassVar[str] = "per_token"
    also_called: ClassVar[tuple[str, ...]] = ("token_classification", "tagging", "ner")
    source: ClassVar[str] = "Devlin et al. 2019, section 5.3 (named entities)"

    def build(self, dims: Dims) -> PerTokenHead:
        if self.classes is None:
            raise dims.problem("n_classes", "missing.", "Say how many classes there are, or name them as labels.")
        return PerTokenHead(self, dims.d_model, self.classes)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_classes=3), cls(labels=("noun", "verb"), dropout=0.1)]


class PerTokenHead(Classifier):
    """One linear map [C,D] with a bias."""

    def __init__(self, config: PerTokenConfig, d_model: int, n_classes: int) -> None:
        super().__init__()
        self.n_outputs, self.labels = n_classes, config.labels
        self.dropout = Dropout(config.dropout)
        self.map = linear_scores(d_model, n_classes)

    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B T C"]:
        scores: Tensor = self.map(self.dropout(h))
        return scores
