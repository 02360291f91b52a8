"""`HeadConfig`: base of the configurations of heads that stand beside a language model's readout."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from weft.core.config import PartField, rule
from weft.core.model import Head
from weft.core.part_config import Dims, ModuleConfig
from weft.norms.base import NoNormConfig, NormConfig
from weft.ops.activations import Activation


class HeadConfig(ModuleConfig):
    """Base of head configurations, for a model's ``head``."""

    group: ClassVar[str] = "head"

    def build(self, dims: Dims) -> Head:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")


class ClassifierConfig(HeadConfig):
    """Base of the configurations of heads for classes.

    Attributes:
        n_classes: C; left out if ``labels`` are given.
        labels: names of the classes, in the order of their ids.
        dropout: probability with which a number is dropped in training, of the input of the last map.
        transform: whether a vector x first becomes norm(f(V x + v)) (BERT's pooler, RoBERTa's and ModernBERT's heads).
        activation: f; only with ``transform``.
        transform_bias: whether there is a v; only with ``transform``.
        norm: of the transformed vector; only with ``transform``.
    """

    n_classes: int | None = Field(default=None, gt=1)
    labels: tuple[str, ...] = ()
    dropout: float = Field(default=0.0, ge=0, lt=1)
    transform: bool = False
    activation: Activation = "tanh"
    transform_bias: bool = True
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = NoNormConfig()

    @model_validator(mode="after")
    def _of_a_transform(self) -> Self:
        for name in () if self.transform else ("activation", "transform_bias", "norm"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise rule(name, "a field of the transform, and there is none.",
                           "Add transform: true, or leave it out.")
        return self

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            twice = next(name for name in self.labels if self.labels.count(name) > 1)
            raise rule("labels", f"{twice!r} is listed twice.", "Give each class a different name.")
        if self.labels and self.n_classes not in (None, len(self.labels)):
            raise rule("n_classes", f"{self.n_classes} for {len(self.labels)} labels.", "Leave it out.")
        if len(self.labels) == 1:
            raise rule("labels", f"{self.labels[0]!r} is the only one.", "Name at least two classes.")
        return self

    @property
    def classes(self) -> int | None:
        """Number of classes; None where none are declared."""
        return len(self.labels) or self.n_classes

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, which are their ids if they have no labels; empty without declared classes."""
        return self.labels or tuple(map(str, range(self.classes or 0)))
