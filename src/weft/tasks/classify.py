"""The task of classifiers: predict the class, or values, of a text or a pair of texts.

Correlations of predicted values with the true ones, for regression.

The task of regression: predict one value of a text or a pair of texts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.model import Classifier, EncoderInputs, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.span import Span
from weft.data.batch_source import RowBatches
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.labelled import LabelledTexts, encode_labelled, label_of, names_in, values_from
from weft.data.records import Fields, TextRecord, text_of
from weft.data.rows import values_of
from weft.data.sequences import widths
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSums, Count, Rows, TaskDeclared, TaskSettings, head_scores, on_device
from weft.tasks.classes import ClassCounts
from weft.tasks.classify_images import negative_log_likelihood
from weft.tasks.protocols import HasClasses
from weft.tasks.records import RecordTask, RecordTaskConfig
from weft.tasks.validation import Validation, part_measured
from weft.tokenizers import Tokenizer


def labelled(values: int | None) -> TaskDeclared:
    """The declarations of a task on a class, or on so many values."""
    return TaskDeclared(unit="example", measured_in="nats" if values is None else "squared error", values=values)


class LabelledConfig(RecordTaskConfig, HasClasses):
    """Base of the configurations of tasks on records of a text, or a pair of texts, with a class or values.

    Attributes:
        text_field: the field that holds the text.
        second_field: the field that holds a second text, which follows the first; None: there is none.
    """

    text_field: str = Field(default="text", min_length=1)
    second_field: str | None = Field(default=None, min_length=1)

    @abstractmethod
    def answer(self) -> Fields:
        """The field of a record that holds the class or the values, by the setting that names it."""

    @model_validator(mode="after")
    def _different_fields(self) -> Self:
        fields = list(self.fields().items())
        for place, (setting, field) in enumerate(fields):
            if field in [other for _, other in fields[:place]]:
                raise rule(setting, f"{field!r} is named twice.", "Name another field.")
        return self

    def create(self, settings: TaskSettings) -> Classify:
        return Classify(self, settings)

    def fields(self) -> Fields:
        second = {} if self.second_field is None else {"second_field": self.second_field}
        return {"text_field": self.text_field, **second, **self.answer()}

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        return () if self.declares().values is not None else names_in(self.parts(data).parts["train"])

    def texts_of(self, corpus: Corpus) -> Iterator[str]:
        return (text for row in corpus.documents for text in values_of(row)[:-1])

    def keep(self, record: TextRecord) -> tuple[Any, ...]:
        *texts, label = zip(record.values, self.fields().items(), strict=True)
        kept = (text_of(value, setting, field, record.where) for value, (setting, field) in texts)
        value, (_, field) = label
        if (values := self.declares().values) is not None:
            return (*kept, values_from(value, field, record.where, values))
        return (*kept, label_of(value, field, record.where, "; for values to be predicted set task.n_values"))


@register
class ClassifyConfig(LabelledConfig):
    """Predict a record's class, or its values, from its text or pair of texts, by a model with a head that pools each
    row.

    Attributes:
        label_field: the field that holds the class, a name or a whole number; or the values.
        n_values: the number of values to predict in place of a class; of one value see also the task `regression`.
    """

    kind: ClassVar[str] = "classify"
    about = About(
        also_called=("classification", "sequence_classification", "text_classification", "text_pairs"),
        source="Devlin et al. 2019, section 4.1; Radford et al. 2018, section 3.3 (a pair of texts)",
        equation=r"L = -\frac{1}{n} \sum_{i=1}^{n} \log \operatorname{softmax}(s(x_i))_{y_i}",
        differs=(("regression", "predicts a class in place of a number."), ("classify_images", "reads texts.")),
        pictured=(("[CLS]", "positive"), ("a", ""), ("gripping", ""), ("film", "")))

    label_field: str = Field(default="label", min_length=1)
    n_values: int | None = Field(default=None, gt=0)

    def declares(self) -> TaskDeclared:
        return labelled(self.n_values)

    def answer(self) -> Fields:
        return {"label_field": self.label_field}

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(text_field="premise", second_field="hypothesis", label_field="relation"), cls(n_values=1)]


class LabelledColumns(NamedTuple):
    """Rows of texts: ids and types of tokens [B,T], the class of each row or its values, and the span."""

    ids: Tensor
    types: Tensor
    labels: Tensor
    span: Span


def labelled_rows(texts: LabelledTexts, chosen: Int64[np.ndarray, " B"], share: slice) -> Rows[LabelledColumns]:
    """A share of the examples ``chosen`` as padded rows. The type of a second text's tokens is 1."""
    (width,) = widths((texts.rows, chosen))
    rows = chosen[share]
    padded = texts.rows.padded(rows, width)
    places, first = np.arange(width), padded.count - texts.second[rows]
    types = (places >= first[:, None]) & (places < padded.count[:, None])
    ids, types, labels, count = map(torch.from_numpy, (padded.ids, types.astype(np.int64), texts.labels[rows],
                                                       padded.count))
    return Rows(LabelledColumns(ids, types, labels, Span(count=count)), Count(len(rows), len(rows)))


class Classify(RecordTask[LabelledConfig, LabelledTexts, LabelledColumns]):
    """Rows of texts with classes, whose summed negative log-likelihood is the loss; or with values, whose summed mean
    squared error is.

    It measures loss, accuracy, F1 (the mean of the classes; of two classes that of the second, too) and Matthews'
    correlation; or the mean squared error and the correlations of Pearson and Spearman with the true values. All but
    the mean squared error have their standard errors.
    """

    def problems(self, model: Model) -> list[str]:
        kind, head, values = model.config.kind, model.head, self.declared.values
        outputs = "n_classes or labels" if values is None else f"n_values: {values}"
        if "tokens" not in model.reads():
            return [f"model: a model of kind {kind!r} reads no tokens. Give a model of tokens."]
        if not isinstance(head, Classifier) or not head.pooled:
            has = "no head" if head is None else "a head that does not pool a row"
            return [f"model.head: the model has {has}. Give head: {{kind: pooled}} with {outputs}."]
        if head.values != (values is not None) or (values is not None and head.n_outputs != values):
            has = f"{head.n_outputs} {'values' if head.values else 'classes'}"
            needed = "classes" if values is None else "one value" if values == 1 else f"{values} values"
            return [f"model.head: it gives {has}, while the task needs {needed}. Give head: {{kind: pooled}} with "
                    f"{outputs}."]
        found = super().problems(model)
        if self.config.second_field is not None and self.settings.context < 8:
            found.append(f"training.context: {self.settings.context} tokens for two texts. Give at least 8.")
        return found

    def encode(self, corpus: Corpus, tokenizer: Tokenizer, repeated: Repeated | None) -> LabelledTexts:
        names = None if self.declared.values is not None else self.settings.labels
        return encode_labelled(corpus, tokenizer, names, self.settings.context, repeated)

    def batches(self, examples: LabelledTexts) -> RowBatches[Rows[LabelledColumns]]:
        settings, size = self.settings, len(examples.rows)
        order = settings.order(size, examples.corpus)
        notice = None if not examples.cut else (
            f"{examples.cut:,} of {size:,} examples are longer than the context of {settings.context} tokens and were "
            "cut at the end")
        return RowBatches(order, lambda chosen, share, step: labelled_rows(examples, chosen, share),
                          tokens=order.rows * len(examples) / size, notice=notice)

    def loss(self, model: Model, columns: LabelledColumns, state: ModelState | None) -> BatchSums:
        scores, losses = self._scores(model, columns)
        found = self._losses(scores, columns.labels).sum()
        return BatchSums(found.detach(), found, None, losses)

    def _scores(self, model: Model, columns: LabelledColumns) -> tuple[Tensor, tuple[Any, ...]]:
        types = columns.types if model.reads().get("types", 0) > 1 else None
        return head_scores(model, EncoderInputs(tokens=columns.ids, types=types), columns.span)

    def _losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        if self.declared.values is not None:
            return (scores - labels.to(scores.dtype)).square().mean(-1)
        return negative_log_likelihood(scores, labels)

    def guess(self, model: Model) -> float:
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        return 1.0 if self.declared.values is not None else math.log(max(2, model.head.n_outputs))

    def measure(self, model: Model, examples: LabelledTexts, batches: int | None = None) -> Validation:
        """Measure each example once, in order."""
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        groups, total, rows = in_batches(len(examples.rows), self.settings.rows), 0.0, 0
        counts = None if self.declared.values is not None else ClassCounts(model.head.n_outputs)
        values: list[tuple[np.ndarray, np.ndarray]] = []
        with evaluating(model) as device:
            for chosen in spread(groups, batches):
                columns = on_device(labelled_rows(examples, chosen, slice(None)).columns, device)
                scores, _ = self._scores(model, columns)
                total += finite(self._losses(scores, columns.labels).double().sum(), examples.corpus)
                rows += len(chosen)
                if counts is not None:
                    counts.add(columns.labels.cpu().numpy(), scores.argmax(-1).cpu().numpy())
                else:
                    values.append((columns.labels.double().cpu().numpy(), scores.double().cpu().numpy()))
        cut = f"; {examples.cut} cut to the context" if examples.cut else ""
        protocol = f"each held-out example once{cut}{part_measured(batches, len(groups))}"
        if counts is None:
            true, predicted = (np.concatenate(each) for each in zip(*values, strict=True))
            found = {"mean_squared_error": total / rows}
            for name, measure in (("pearson", pearson), ("spearman", spearman)):
                found |= {name: measure(true, predicted),
                          f"{name}_standard_error": jackknife_error(measure, true, predicted)}
            return Validation(None, total / rows, rows, 0, protocol, found, "loss", unit=self.declared.unit)
        return Validation(None, total / rows, rows, 0, protocol, counts.measures(), "accuracy", rising=True,
                          unit=self.declared.unit)


Correlation: TypeAlias = Callable[[np.ndarray, np.ndarray], float]
GROUPS = 200
"""Groups of examples that the jackknife leaves out one after the other. With more of them the ranks of many examples
take long to sort anew, and the error is hardly known better."""


def pearson(true: Float[np.ndarray, "n C"], predicted: Float[np.ndarray, "n C"]) -> float:
    """The linear correlation of each value over the examples, and the mean of these over the C values; 0 for a value
    that does not vary."""
    a, b = true - true.mean(0), predicted - predicted.mean(0)
    scale = np.sqrt((a * a).sum(0) * (b * b).sum(0))
    return float(np.divide((a * b).sum(0), scale, out=np.zeros_like(scale), where=scale > 0).mean())


def spearman(true: Float[np.ndarray, "n C"], predicted: Float[np.ndarray, "n C"]) -> float:
    """`pearson` of the ranks of each value, equal values sharing the mean of their ranks (Spearman 1904)."""
    return pearson(_ranks(true), _ranks(predicted))


def jackknife_error(correlation: Correlation, true: Float[np.ndarray, "n C"],
                    predicted: Float[np.ndarray, "n C"]) -> float:
    """The standard error of a correlation, by `error_of` from the correlations without the i-th of g groups of examples
    (Efron and Tibshirani 1993, equation 11.5; Shao and Tu 1995, section 2.3): each example is a group of its own up to
    `GROUPS` examples; of more, group i has every `GROUPS`-th from the i-th on. 0 for fewer than three examples."""
    groups = min(len(true), GROUPS)
    group = np.arange(len(true)) % groups
    return error_of([correlation(true[group != i], predicted[group != i]) for i in range(groups)] if groups > 2 else [])


def error_of(left_out: Sequence[float]) -> float:
    """The jackknife's standard error of a measure from its values m_i without the i-th of g groups of examples:
    sqrt((g - 1)/g sum (m_i - mean m)^2); 0 for fewer than three groups."""
    groups, found = len(left_out), np.array(left_out)
    if groups < 3:
        return 0.0
    return math.sqrt((groups - 1) / groups * float(((found - found.mean()) ** 2).sum()))


def _ranks(values: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    ranks = np.empty(values.shape)
    for column in range(values.shape[1]):
        _, place, count = np.unique(values[:, column], return_inverse=True, return_counts=True)
        last = count.cumsum()  # the rank of the last of each group of equal values
        ranks[:, column] = (last - (count - 1) / 2)[place]
    return ranks


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
