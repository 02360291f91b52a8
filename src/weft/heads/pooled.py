"""The head with one result for a row: scores of classes, or values."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.heads.base import ClassifierConfig
from weft.heads.classifier import LinearClassifier


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
