"""The task of classifiers: predict the class, or values, of a text or a pair of texts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.model import Classifier, EncoderInputs, Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.core.span import Span
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.labelled import (
    LabelledBatch,
    LabelledBatches,
    LabelledTexts,
    encode_labelled,
    label_of,
    laid_out,
    names_in,
    values_from,
)
from weft.data.records import Fields, TextRecord, text_of
from weft.data.rows import values_of
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSource, BatchSums, Count, TaskSettings
from weft.tasks.classes import ClassCounts
from weft.tasks.correlations import jackknife_error, pearson, spearman
from weft.tasks.records import RecordTask, RecordTaskConfig
from weft.tasks.validation import Validation
from weft.tokenizers import Tokenizer


class LabelledConfig(RecordTaskConfig):
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
        return () if self.values_predicted is not None else names_in(self.parts(data).parts["train"])

    def texts_of(self, corpus: Corpus) -> Iterator[str]:
        return (text for row in corpus.documents for text in values_of(row)[:-1])

    def keep(self, record: TextRecord) -> tuple[Any, ...]:
        *texts, label = zip(record.values, self.fields().items(), strict=True)
        kept = (text_of(value, setting, field, record.where) for value, (setting, field) in texts)
        value, (_, field) = label
        if self.values_predicted is not None:
            return (*kept, values_from(value, field, record.where, self.values_predicted))
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

    @property
    def values_predicted(self) -> int | None:
        return self.n_values

    def answer(self) -> Fields:
        return {"label_field": self.label_field}

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(text_field="premise", second_field="hypothesis", label_field="relation"), cls(n_values=1)]


@final
class Classify(RecordTask[LabelledConfig, LabelledTexts, LabelledBatch]):
    """Rows of texts with classes, whose summed negative log-likelihood is the loss; or with values, whose summed mean
    squared error is.

    It measures loss, accuracy, F1 (the mean of the classes; of two classes that of the second, too) and Matthews'
    correlation; or the mean squared error and the correlations of Pearson and Spearman with the true values. All but
    the mean squared error have their standard errors.
    """

    unit = "example"

    def __init__(self, config: LabelledConfig, settings: TaskSettings) -> None:
        super().__init__(config, settings)
        self.name = config.kind  # type: ignore[misc]
        self.measured_in = "nats" if config.values_predicted is None else "squared error"

    def problems(self, model: Model) -> list[str]:
        kind, head, values = model.config.kind, model.head, self.config.values_predicted
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
        names = None if self.config.values_predicted is not None else self.settings.labels
        return encode_labelled(corpus, tokenizer, names, self.settings.context, repeated)

    def batches(self, examples: LabelledTexts) -> LabelledBatches[LabelledTexts, LabelledBatch]:
        settings = self.settings
        return LabelledBatches(examples, laid_out, rows=settings.rows, seed=settings.seed, reshuffle=settings.reshuffle)

    def notice(self, batches: BatchSource[LabelledBatch]) -> str | None:
        texts = batches.texts if isinstance(batches, LabelledBatches) else None
        if texts is None or not texts.cut:
            return None
        return (f"{texts.cut:,} of {len(texts.rows):,} examples are longer than the context of "
                f"{self.settings.context} tokens and were cut at the end")

    def count(self, batch: LabelledBatch) -> Count:
        return Count(len(batch.labels), len(batch.labels))

    def given(self, batch: LabelledBatch, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ids, types, count, labels = (torch.from_numpy(values).to(device) for values in
                                     (batch.ids, batch.types, batch.count, batch.labels))
        return ids, types, count, labels

    def loss(self, model: Model, given: tuple[Tensor, Tensor, Tensor, Tensor], state: ModelState | None) -> BatchSums:
        scores, losses = self._scores(model, given)
        found = self._losses(scores, given[3]).sum()
        return BatchSums(found.detach(), found, None, losses)

    def _scores(self, model: Model, given: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, tuple[Any, ...]]:
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        ids, types, count, _ = given
        span = Span(count=count)
        out = model.vectors(EncoderInputs(tokens=ids, types=types if model.reads().get("types", 0) > 1 else None), span)
        scores = model.head.scores(out.y, span)
        return scores.to(torch.promote_types(scores.dtype, torch.float32)), out.losses

    def _losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row."""
        if self.config.values_predicted is not None:
            return (scores - labels.to(scores.dtype)).square().mean(-1)
        return -scores.log_softmax(-1).gather(-1, labels[:, None])[:, 0]

    def guess(self, model: Model) -> float:
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        return 1.0 if self.config.values_predicted is not None else math.log(max(2, model.head.n_outputs))

    def measure(self, model: Model, examples: LabelledTexts, batches: int | None = None) -> Validation:
        """Measure each example once, in order."""
        assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
        groups, total, rows = in_batches(len(examples.rows), self.settings.rows), 0.0, 0
        counts = None if self.config.values_predicted is not None else ClassCounts(model.head.n_outputs)
        values: list[tuple[np.ndarray, np.ndarray]] = []
        with evaluating(model) as device:
            for chosen in spread(groups, batches):
                given = self.given(laid_out(examples, chosen, slice(None)), device)
                scores, _ = self._scores(model, given)
                total += finite(self._losses(scores, given[3]).double().sum(), examples.corpus)
                rows += len(chosen)
                if counts is not None:
                    counts.add(given[3].cpu().numpy(), scores.argmax(-1).cpu().numpy())
                else:
                    values.append((given[3].double().cpu().numpy(), scores.double().cpu().numpy()))
        part = "" if batches is None or batches >= len(groups) else f"; {batches} of {len(groups)} batches"
        cut = f"; {examples.cut} cut to the context" if examples.cut else ""
        protocol = f"each held-out example once{cut}{part}"
        if counts is None:
            true, predicted = (np.concatenate(each) for each in zip(*values, strict=True))
            found = {"mean_squared_error": total / rows}
            for name, measure in (("pearson", pearson), ("spearman", spearman)):
                found |= {name: measure(true, predicted),
                          f"{name}_standard_error": jackknife_error(measure, true, predicted)}
            return Validation(None, total / rows, rows, 0, protocol, found, "loss", unit=self.unit)
        return Validation(None, total / rows, rows, 0, protocol, counts.measures(), "accuracy", rising=True,
                          unit=self.unit)
