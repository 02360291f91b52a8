"""The task of regression: predict one value of a text or a pair of texts."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from weft.core.part_config import About
from weft.core.registry import register
from weft.data.records import Fields
from weft.tasks.base import TaskDeclared
from weft.tasks.classify import LabelledConfig, labelled


@register
class RegressionConfig(LabelledConfig):
    """Predict a record's value from its text or pair of texts, by a model with a head that pools each row.

    The loss is the mean of (y - v)^2 over the examples, where v is the value and y the head's prediction. It measures
    that loss and Pearson's and Spearman's correlation of y with v, these with their standard errors. Several values of
    a record are the task `classify` with ``values``.

    Attributes:
        value_field: the field that holds the value, a finite number.
    """

    kind: ClassVar[str] = "regression"
    about = About(
        also_called=("text_regression", "semantic_similarity", "stsb", "sts"),
        source="Cer et al. 2017 (STS-B); Devlin et al. 2019, section 4.1 (GLUE)",
        equation=r"L = \frac{1}{n} \sum_{i=1}^{n} (y(x_i) - v_i)^2",
        differs=(("classify", "predicts a number in place of a class."),),
        pictured=(("[CLS]", "4.2"), ("a man sings", ""), ("[SEP]", ""), ("someone is singing", "")))

    value_field: str = Field(default="value", min_length=1)

    def declares(self) -> TaskDeclared:
        return labelled(1)

    def answer(self) -> Fields:
        return {"value_field": self.value_field}

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(text_field="sentence1", second_field="sentence2", value_field="score")]
