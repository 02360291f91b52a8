"""The common base of heads for classes: a map of the vectors, an activation and a norm, if wanted, and the map to
scores; and the simplest of them, a prediction for every token."""

from __future__ import annotations

from typing import ClassVar, Self

from jaxtyping import Float
from torch import Tensor, nn

from weft.core.model import Classifier
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.heads.base import ClassifierConfig
from weft.linear.linear import Linear
from weft.ops.activations import ACTIVATIONS
from weft.ops.dropout import Dropout

STD = 0.02
"""Standard deviation of the initial weights of classifiers (Devlin et al. 2019, their code)."""


def small(d_in: int, d_out: int, *, bias: bool = True) -> Linear:
    """A linear map with small initial weights, and a bias of zero if it has one."""
    made = Linear(d_in, d_out, bias)
    nn.init.normal_(made.weight, std=STD)
    if made.bias is not None:
        nn.init.zeros_(made.bias)
    return made


class LinearClassifier(Classifier):
    """scores = W x + b of vectors x [..., D], or W norm(f(V x + v)) + b with a transform.

    Attributes:
        transform: V [D,D] and v; None without one.
        map: W [C,D] and b.
    """

    def __init__(self, config: ClassifierConfig, dims: Dims, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs, self.labels = n_outputs, config.labels
        width = dims.d_model
        self.transform = small(width, width, bias=config.transform_bias) if config.transform else None
        self.activation = ACTIVATIONS[config.activation]
        self.norm = config.norm.build_size(width)
        self.dropout = Dropout(config.dropout)
        self.map = small(width, n_outputs)

    def of_vectors(self, x: Tensor) -> Tensor:
        """The scores [..., C] of vectors [..., D]."""
        x = x if self.transform is None else self.norm(self.activation(self.transform(x)))
        scores: Tensor = self.map(self.dropout(x))
        return scores


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
