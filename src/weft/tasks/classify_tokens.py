"""The task of tagging: predict the class of every word of a text.

Measures of labelled words: accuracy, F1 of classes, and F1 of whole spans where labels are in BIO form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
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
from weft.data.labelled_words import LabelledWords, encode_words, labels_of, texts_of, word_classes, words_of
from weft.data.records import Fields, TextRecord
from weft.data.sequences import widths
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import BatchSums, Count, Rows, TaskDeclared, TaskSettings, head_scores, on_device
from weft.tasks.classes import macro_f1
from weft.tasks.classify import GROUPS, error_of
from weft.tasks.protocols import HasClasses
from weft.tasks.records import RecordTask, RecordTaskConfig
from weft.tasks.validation import Validation, part_measured
from weft.tokenizers import Tokenizer


@register
class ClassifyTokensConfig(RecordTaskConfig, HasClasses):
    """Predict the class of every word of a record, such as named entities or parts of speech, by a model with a head
    that scores each token.

    The words, with a space between them, are one text. The first token of a word, t(w), has the word's class; its other
    tokens and the tokens around the text are read and not scored. The loss is the mean over the words. It measures the
    accuracy and the F1 of the classes, over words; and if all labels are in BIO form (``B-PER``, ``I-PER``, ``O``)
    precision, recall and F1 of whole spans, as CoNLL-2003 does: a span is right if its words and its type are.

    Attributes:
        words_field: the field that holds the words, a list of them; or a text whose words stand between white space.
        labels_field: the field that holds a class for each word, names or whole numbers, in the same form.
        cut: texts longer than the context are cut at their ends and counted, and words beyond are left out; otherwise
            such texts are refused.
    """

    kind: ClassVar[str] = "classify_tokens"
    about = About(
        also_called=("token_classification", "label_tokens", "tagging", "sequence_labeling", "ner", "named_entities",
                     "pos_tagging", "conll2003"),
        source=("Devlin et al. 2019, section 5.3 (a word's first token has its class); Tjong Kim Sang and De Meulder "
                "2003, section 2 (F1 of spans)"),
        equation=r"L = -\frac{1}{|W|} \sum_{w \in W} \log \operatorname{softmax}(s_{t(w)})_{y_w}",
        differs=(("classify", "predicts a class for every word in place of one for the row."),
                 ("masked", "predicts classes of words that the model reads, in place of tokens that are hidden.")),
        pictured=(("[CLS]", ""),
                  ("Ada", "B-PER"),
                  ("Love", "I-PER"),
                  ("##lace", ""),
                  ("saw", "O"),
                  ("London", "B-LOC"),
                  ("[SEP]", "")))

    words_field: str = Field(default="words", min_length=1)
    labels_field: str = Field(default="labels", min_length=1)
    cut: bool = False

    @model_validator(mode="after")
    def _different_fields(self) -> Self:
        if self.words_field == self.labels_field:
            raise rule("labels_field", f"{self.labels_field!r} is the field of the words.", "Name another field.")
        return self

    def declares(self) -> TaskDeclared:
        return TaskDeclared(unit="word", cuts=True)

    def create(self, settings: TaskSettings) -> ClassifyTokens:
        return ClassifyTokens(self, settings)

    def fields(self) -> Fields:
        return {"words_field": self.words_field, "labels_field": self.labels_field}

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        return word_classes(self.parts(data).parts["train"])

    def texts_of(self, corpus: Corpus) -> Iterator[str]:
        return texts_of(corpus)

    def keep(self, record: TextRecord) -> tuple[Any, ...]:
        words = words_of(record.values[0], "words_field", self.words_field, record.where)
        return words, labels_of(record.values[1], "labels_field", self.labels_field, record.where, len(words))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(words_field="tokens", labels_field="ner_tags", cut=True)]


class WordColumns(NamedTuple):
    """Rows of words: ids [B,T], the class of the word whose first token each is [B,T], -1 for tokens that are not
    scored, and the span."""

    ids: Tensor
    labels: Tensor
    span: Span


def word_rows(texts: LabelledWords, chosen: Int64[np.ndarray, " B"], share: slice) -> Rows[WordColumns]:
    """A share of the examples ``chosen`` as padded rows."""
    (width,) = widths((texts.rows, chosen))
    padded = texts.rows.padded(chosen[share], width)
    labels = texts.classes.padded(chosen[share], width).ids - 1
    columns = WordColumns(torch.from_numpy(padded.ids), torch.from_numpy(labels),
                          Span(count=torch.from_numpy(padded.count)))
    return Rows(columns, Count(len(labels), int((labels >= 0).sum())))


class ClassifyTokens(RecordTask[ClassifyTokensConfig, LabelledWords, WordColumns]):
    """Rows of words, whose first tokens have their classes; the loss is their summed negative log-likelihood."""

    def problems(self, model: Model) -> list[str]:
        kind, head = model.config.kind, model.head
        if "tokens" not in model.reads():
            return [f"model: a model of kind {kind!r} reads no tokens. Give a model of tokens."]
        if not isinstance(head, Classifier) or head.pooled or head.values:
            has = "no head" if head is None else "a head that does not give classes for each token"
            return [f"model.head: the model has {has}. Give head: {{kind: per_token}} with n_classes or labels."]
        return super().problems(model)

    def encode(self, corpus: Corpus, tokenizer: Tokenizer, repeated: Repeated | None) -> LabelledWords:
        return encode_words(corpus, tokenizer, self.settings.labels, self.settings.context, repeated,
                            cut=self.config.cut)

    def batches(self, examples: LabelledWords) -> RowBatches[Rows[WordColumns]]:
        settings, size = self.settings, len(examples.rows)
        order = settings.order(size, examples.corpus)
        notice = None if not examples.cut else (
            f"{examples.cut:,} of {size:,} texts are longer than the context of {settings.context} tokens and were cut "
            f"at the end, which leaves out {examples.left_out:,} words")
        return RowBatches(order, lambda chosen, share, step: word_rows(examples, chosen, share),
                          tokens=order.rows * len(examples) / size, notice=notice)

    def loss(self, model: Model, columns: WordColumns, state: ModelState | None) -> BatchSums:
        scores, losses = head_scores(model, EncoderInputs(tokens=columns.ids), columns.span)
        found = _sum(scores, columns.labels)
        return BatchSums(found.detach(), found, None, losses)

    def guess(self, model: Model) -> float:
        return math.log(max(2, _head(model).n_outputs))

    def measure(self, model: Model, examples: LabelledWords, batches: int | None = None) -> Validation:
        """Measure each text once, in order."""
        groups = in_batches(len(examples.rows), self.settings.rows)
        chosen, nats, words = spread(groups, batches), 0.0, 0
        head = _head(model)
        counts = TagCounts(head.labels or tuple(map(str, range(head.n_outputs))), sum(map(len, chosen)))
        with evaluating(model) as device:
            for rows in chosen:
                batch = word_rows(examples, rows, slice(None))
                columns = on_device(batch.columns, device)
                scores, _ = head_scores(model, EncoderInputs(tokens=columns.ids), columns.span)
                nats += finite(_sum(scores.double(), columns.labels), examples.corpus)
                words += batch.count.predictions
                labels = batch.columns.labels.numpy()
                for true, predicted in zip(labels, scores.argmax(-1).cpu().numpy(), strict=True):
                    counts.add(true[true >= 0], predicted[true >= 0])
        part = part_measured(batches, len(groups))
        cut = f"; {examples.cut} cut to the context, without {examples.left_out} words" if examples.cut else ""
        found = counts.measures()
        return Validation(None, nats / words, words, 0, f"each word of each held-out text once{cut}{part}", found,
                          "span_f1" if "span_f1" in found else "accuracy", rising=True, unit=self.declared.unit)


def _head(model: Model) -> Classifier:
    assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
    return model.head


def _sum(scores: Tensor, labels: Tensor) -> Tensor:
    """The negative log-likelihood of the labels, summed over the tokens that have one."""
    nats = -scores.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return nats.where(labels >= 0, torch.zeros_like(nats)).sum()


OUTSIDE = "O"
IN_SPAN = re.compile(r"[BI]-.+", re.DOTALL)


def in_bio(names: Sequence[str]) -> bool:
    """Whether labels are in BIO form: ``B-x`` and ``I-x`` for words of a span of the type x, and ``O`` for others."""
    return any(IN_SPAN.fullmatch(name) for name in names) and all(
        name == OUTSIDE or IN_SPAN.fullmatch(name) for name in names)


def spans_in(labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """The spans of one text from its words' labels in BIO form, as CoNLL-2003's program ``conlleval`` finds them: the
    first word of each, the one behind the last, and its type.

    A span begins at a B-x, and at an I-x that does not continue a span of the type x. So texts in which only spans next
    to one of the same type begin with B (CoNLL-2003's own files, IOB1) have the same spans as those in which all do.
    """
    found: list[tuple[int, int, str]] = []
    for place, label in enumerate(labels):
        if label == OUTSIDE:
            continue
        form, kind = label.split("-", 1)
        if form == "I" and found and found[-1][1:] == (place, kind):
            found[-1] = found[-1][0], place + 1, kind
        else:
            found.append((place, place + 1, kind))
    return found


Totals: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
"""A measure of counts: of right predictions, of what is true and of what is predicted."""


class TagCounts:
    """Counts over the words of texts.

    The words of a text are not independent, so standard errors are those of the jackknife over texts: each is left out
    by itself, or with more than `weft.tasks.classify.GROUPS` texts one of that many groups.

    Args:
        names: of the classes, in the order of their ids.
        texts: how many will be added.
    """

    def __init__(self, names: Sequence[str], texts: int) -> None:
        self._names, self._added = tuple(names), 0
        groups = min(texts, GROUPS)
        self._classes = np.zeros((groups, 3, len(names)), dtype=np.int64)
        self._spans = np.zeros((groups, 3, 1), dtype=np.int64) if in_bio(names) else None

    def add(self, true: Int64[np.ndarray, " W"], predicted: Int64[np.ndarray, " W"]) -> None:
        """Count one more text, from the classes of its words."""
        group, size = self._added % len(self._classes), len(self._names)
        self._added += 1
        for place, chosen in enumerate((true[true == predicted], true, predicted)):
            self._classes[group, place] += np.bincount(chosen, minlength=size)
        if self._spans is not None:
            wanted, found = ({*spans_in([self._names[each] for each in labels])} for labels in (true, predicted))
            self._spans[group, :, 0] += [len(wanted & found), len(wanted), len(found)]

    def measures(self) -> dict[str, float]:
        """Every measure by its name, each with its standard error; those of spans only for labels in BIO form."""
        found: list[tuple[str, Totals, np.ndarray]] = [
            ("accuracy", _recall, self._classes), ("macro_f1", macro_f1, self._classes)]
        if self._spans is not None:
            found += [("span_precision", _precision, self._spans), ("span_recall", _recall, self._spans),
                      ("span_f1", _f1, self._spans)]
        measures: dict[str, float] = {}
        for name, measure, counts in found:
            total = counts.sum(0)
            measures |= {name: measure(*total),
                         f"{name}_standard_error": error_of([measure(*(total - group)) for group in counts])}
        return measures


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _precision(both: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    return _share(int(both.sum()), int(predicted.sum()))


def _recall(both: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    """The recall of words, of which each has one true and one predicted class; it is the accuracy."""
    return _share(int(both.sum()), int(true.sum()))


def _f1(both: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    return _share(2 * int(both.sum()), int(true.sum() + predicted.sum()))
