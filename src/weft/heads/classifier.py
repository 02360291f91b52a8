"""The common base of heads for classes: a map of the vectors, an activation and a norm, if wanted, and the map to
scores; and the simplest of them, a prediction for every token.

The head with scores of classes from every layer, for supervised layer-wise pre-training.

The head with one result for a row: scores of classes, or values.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.config import rule
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


@register
class LayerClassesConfig(ClassifierConfig):
    """scores_l = W_l h_l + b_l of each layer l of a ``dense`` model, whose own scores are those of its last layer; in
    any other model, of its vectors alone. The vector of a row is that of its first token."""

    kind: ClassVar[str] = "layer_classes"
    about = About(
        source="Bengio et al. 2006, section 4 (supervised greedy pre-training)",
        equation=r"s_l = W_l h_l + b_l \quad \text{for every layer } l",
        differs=(("pooled", "scores classes from every layer, for training one layer after another."),))

    def build(self, dims: Dims) -> LayerClasses:
        return self.build_for(dims, (dims.d_model,))

    def build_for(self, dims: Dims, widths: tuple[int, ...]) -> LayerClasses:
        """The head of a model whose layers have these widths."""
        if self.classes is None:
            raise dims.problem("n_classes", "missing.", "Say how many classes there are, or name them as labels.")
        if self.transform:
            raise dims.problem("transform", "the heads of layers are linear maps.", "Leave it out.")
        return LayerClasses(self, widths, self.classes)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_classes=3), cls(labels=("no", "yes"), dropout=0.1)]


class LayerClasses(Classifier):
    """A linear map [C,D_l] with a bias for each layer."""

    pooled = True

    def __init__(self, config: LayerClassesConfig, widths: tuple[int, ...], n_outputs: int) -> None:
        super().__init__()
        self.n_outputs, self.labels = n_outputs, config.labels
        self.dropout = Dropout(config.dropout)
        self.maps = nn.ModuleList(small(width, n_outputs) for width in widths)

    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B C"]:
        return self.layer_scores(len(self.maps) - 1, h[:, 0])

    def layer_scores(self, layer: int, units: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """The scores from a layer's units."""
        scores: Tensor = self.maps[layer](self.dropout(units))
        return scores


@register
class PooledConfig(ClassifierConfig):
    """scores = W pool(h) + b, one vector pooled from each row.

    Attributes:
        pool: ``first``: the row's first token (BERT's [CLS]); ``last``: its last token before padding, in a causal
            model the only one that depends on the whole row; ``mean``: the mean of its tokens without padding.
        n_values: the number of values that are predicted in place of classes, for regression.
    """

    kind: ClassVar[str] = "pooled"
    about = About(
        also_called=("sequence_classification", "classification", "classifier", "classify", "regression", "cls",
                     "pooler"),
        source=("Devlin et al. 2019, section 4.1 (first); Radford et al. 2018, section 3.2 (last); Reimers and "
                "Gurevych 2019, section 3 (mean)"),
        equation=r"s = W \operatorname{pool}(h_1, \ldots, h_T) + b",
        differs=(("per_token", "scores the row in place of every token."),))

    pool: Literal["first", "last", "mean"] = "first"
    n_values: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _classes_or_values(self) -> Self:
        if self.n_values is not None and self.classes is not None:
            raise rule("n_values", f"{self.n_values} values beside {self.classes} classes.", "Give one of them.")
        return self

    def build(self, dims: Dims) -> PooledHead:
        outputs = self.n_values or self.classes
        if outputs is None:
            raise dims.problem("n_classes", "missing.", "Say how many classes there are, name them as labels, or give "
                               "n_values for regression.")
        return PooledHead(self, dims, outputs)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_classes=3), cls(pool="last", labels=("no", "yes"), dropout=0.1),
                cls(pool="mean", n_values=2, transform=True),
                cls.model_validate({"n_classes": 2, "transform": True, "activation": "gelu", "transform_bias": False,
                                    "norm": {"kind": "layernorm", "bias": False}})]


class PooledHead(LinearClassifier):
    """One linear map [C,D] with a bias of the pooled vector, which is zero for a row without tokens."""

    pooled = True

    def __init__(self, config: PooledConfig, dims: Dims, n_outputs: int) -> None:
        super().__init__(config, dims, n_outputs)
        self.values, self.pool = config.n_values is not None, config.pool

    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B C"]:
        return self.of_vectors(self._pooled(h, span.count))

    def _pooled(self, h: Float[Tensor, "B T D"], count: Tensor | None) -> Float[Tensor, "B D"]:
        if self.pool == "first":
            return h[:, 0]
        if self.pool == "mean":
            # Vectors of padding are zero, so the sum is over the row's tokens alone.
            return h.mean(1) if count is None else h.sum(1) / count.clamp(min=1)[:, None].to(h.dtype)
        if count is None:
            return h[:, -1]
        return h.gather(1, (count - 1).clamp(min=0)[:, None, None].expand(-1, 1, h.shape[-1]))[:, 0]
