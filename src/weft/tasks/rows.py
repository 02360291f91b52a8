"""Tasks on rows of ids of which some places have an answer: what they share, whether the rows are generated or read.

A language model predicts each answer as the next token behind its place; a model with a pooled head predicts the class
of a row whose one answer is its class.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.model import Classifier, Counted, EncoderInputs, LanguageModel, Model, ModelState
from weft.core.span import Span
from weft.data.batch_source import RowBatches
from weft.data.generated import AnsweredRows, GeneratedRows, Generator, RowExamples
from weft.data.generated.generator import MOST_EXAMPLES, share_of_rows
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, finite, in_batches, spread
from weft.tasks.base import (
    BatchSums,
    Count,
    Rows,
    Task,
    TaskConfig,
    TaskDeclared,
    TaskSettings,
    by_gradients,
    head_scores,
    on_device,
)
from weft.tasks.classify_images import negative_log_likelihood
from weft.tasks.objective import cross_entropy
from weft.tasks.protocols import FitsByCounting, HasClasses, MakesIds
from weft.tasks.token_streams import HeldOut, Material
from weft.tasks.validation import Validation, part_measured
from weft.tokenizers import Tokenizer
from weft.tokenizers.byte import NoTokenizer
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig

Part: TypeAlias = Literal["train"] | HeldOut
TRAINED: tuple[Part, Part] = ("train", "validation")
PIECE = 8192
"""Tokens of a long row that are measured in one call; the state is carried on."""
COUNTED = 1 << 23
"""Tokens of all rows up to which a model is counted on them; each row is laid out once for every answer."""


class RowTaskConfig(TaskConfig, MakesIds):
    """Base of the configurations of tasks on rows with answers."""

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """Tokens of a row at most; None where the data say it."""

    @property
    def first_class(self) -> int | None:
        """The id that stands for the first class; None for a task whose answers are no classes of the row."""
        return None

    @property
    def chance(self) -> float | None:
        """See `weft.data.generated.Generator.chance`."""
        return None

    @abstractmethod
    def read(self, data: DataSettings, part: Part, labels: tuple[str, ...]) -> RowExamples:
        """The rows of a part of the run's data.

        Raises:
            DataError: they cannot be read.
            ConfigError: a setting is given that they do not have.
        """

    @abstractmethod
    def digest(self, data: DataSettings) -> str:
        """A hash of all rows."""

    def changed(self, fields: Mapping[str, int]) -> Self:
        """The same task with some fields changed. Raises `ConfigError`: they do not fit."""
        return parse(type(self), {**self.model_dump(), **fields}, where="task")

    def at_length(self, length: int) -> Self:
        """The same task with rows of that many tokens. Raises `ConfigError`: there are none."""
        raise ConfigError([f"task: the rows of {self.kind!r} have the length that the data give them. Leave the "
                           "length out."])

    def declares(self) -> TaskDeclared:
        return TaskDeclared(unit="answer", smooths=True, row_tokens=self.longest)

    def create(self, settings: TaskSettings) -> RowTask:
        return RowTask(self, settings)


class GeneratedTaskConfig(RowTaskConfig, HasClasses):
    """Base of the configurations of tasks on generated rows. Example i of a part is a pure function of the task,
    ``data.split_seed`` and i; ``data.order_seed`` decides which come first.

    Attributes:
        rows: rows to train on; None: 2^39, of which none comes twice.
        held_out: rows to measure on, others for ``validation`` than for ``test``.
    """

    rows: int | None = Field(default=None, gt=0, le=MOST_EXAMPLES)
    held_out: int = Field(default=1000, gt=1, le=1 << 24)

    @property
    @abstractmethod
    def generator(self) -> Generator:
        """The generator of the rows."""

    @property
    def longest(self) -> int:
        return self.generator.longest

    @property
    def first_class(self) -> int | None:
        return self.generator.first_class if self.generator.classes else None

    @property
    def chance(self) -> float | None:
        return self.generator.chance

    def read(self, data: DataSettings, part: Part, labels: tuple[str, ...]) -> RowExamples:
        plain = DataSettings(split_seed=data.split_seed, order_seed=data.order_seed)
        if given := [name for name in DataSettings.model_fields if getattr(data, name) != getattr(plain, name)]:
            raise ConfigError([f"data.{name}: {getattr(data, name)!r}, while the task {self.kind!r} makes its rows by "
                               "itself. Leave it out; task.rows and task.held_out say how many." for name in given])
        size = self.held_out if part != "train" else MOST_EXAMPLES if self.rows is None else self.rows
        return GeneratedRows(self.generator, seed=data.split_seed, part=part, size=size)

    def vocabulary(self, data: DataSettings) -> int:
        return self.generator.vocab_size

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        return self.generator.classes

    def digest(self, data: DataSettings) -> str:
        made = [self.dump(), self.generator.version, data.split_seed]
        return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


class RowColumns(NamedTuple):
    """Rows: ids [B,T], places and answers [B,K], and the span."""

    ids: Tensor
    places: Tensor
    answers: Tensor
    span: Span


class RowTask(Task[RowTaskConfig, RowExamples, RowColumns], FitsByCounting):
    """Rows with answers, whose summed negative log-likelihood is the loss; tokens without an answer are only read.

    It measures loss and accuracy; the accuracy's standard error, from the accuracies of the rows, since the answers of
    a row are not independent; the share of rows without a wrong answer, where rows have several; and ``chance``, the
    accuracy of the best guess that does not look at the row.
    """

    def problems(self, model: Model) -> list[str]:
        found, longest, limit = [*self._unheeded(), *self._unpredicting(model)], self.config.longest, model.limit()
        if longest is None:
            return found
        needed = self.config.vocabulary(DataSettings())
        if model.vocab_size < needed:
            found.append(f"model.vocab_size: {model.vocab_size}, while the rows of {self.name!r} have {needed:,} ids. "
                         "Leave it out, and it is filled in.")
        if limit is not None and longest > limit:
            found.append(f"task: rows of {longest:,} tokens, and the model's positions end at {limit:,}. Give shorter "
                         "rows, or a model whose positions reach as far.")
        elif self.settings.context < longest:
            found.append(f"training.context: {self.settings.context:,} tokens, while a row of {self.name!r} has up to "
                         f"{longest:,}. Give model.context: {longest}.")
        return found

    def _unpredicting(self, model: Model) -> list[str]:
        """Why the model predicts no answers; empty if it does."""
        kind, head, classes = model.config.kind, model.head, self.config.first_class is not None
        if self._reads_whole(model):
            assert isinstance(head, Classifier), "asked before"
            known = (len(self.config.labels(DataSettings())) if isinstance(self.config, GeneratedTaskConfig)
                     else head.n_outputs)
            if head.n_outputs != known:
                return [f"model.head: {head.n_outputs} classes, while rows of {self.name!r} have {known}. Leave "
                        "n_classes and labels out, and they are filled in."]
            return [] if self.settings.objective.plain else ["training.objective: terms of the loss of tokens, while "
                                                             "the model's head predicts classes. Leave it out."]
        if not isinstance(model, LanguageModel):
            return [f"model: a model of kind {kind!r} predicts no answers here. Give a language model"
                    + (", or one of tokens with head: {kind: pooled}." if classes else ".")]
        if model.takes_source:
            return [f"task: {self.name!r}, and a model of kind {kind!r} decodes from a source, which rows do not have. "
                    "Give a language model without one."]
        return []

    def _reads_whole(self, model: Model) -> bool:
        """Whether the model predicts the row's class by its head."""
        head = model.head
        pooled = isinstance(head, Classifier) and head.pooled and not head.values
        return pooled and "tokens" in model.reads() and self.config.first_class is not None

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[RowExamples]:
        if tokenizer != ByteTokenizerConfig() and not isinstance(tokenizer.from_file(), NoTokenizer):
            raise ConfigError([f"tokenizer: {tokenizer.kind}, while the rows of {self.name!r} are ids. Leave it out."])
        train, validation = (self.config.read(data, part, self.settings.labels) for part in TRAINED)
        return Material(train.name, self.config.digest(data), NoTokenizer(), train, validation)

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> RowExamples:
        return self.config.read(data, part, self.settings.labels)

    def batches(self, examples: RowExamples) -> RowBatches[Rows[RowColumns]]:
        order = self.settings.order(examples.size, examples.name)

        def lay(chosen: Int64[np.ndarray, " B"], share: slice, step: int) -> Rows[RowColumns]:
            rows = (share_of_rows(examples.rows(chosen), share, examples.longest) if examples.varies
                    else examples.rows(chosen[share]))
            return Rows(row_columns(rows), Count(len(rows.answers), rows.answers.size))

        return RowBatches(order, lay, tokens=order.rows * examples.mean_length)

    def loss(self, model: Model, columns: RowColumns, state: ModelState | None) -> BatchSums:
        if self._reads_whole(model):
            scores, losses = head_scores(model, EncoderInputs(tokens=columns.ids), columns.span)
            nats = negative_log_likelihood(scores, self._classes(columns)).sum()
            return BatchSums(nats.detach(), nats, None, losses)
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        out = model.hidden(columns.ids, None, columns.span)
        found = cross_entropy(model.readout, _at(out.y, columns.places), columns.answers,
                              torch.ones_like(columns.answers, dtype=torch.bool), self.settings.objective)
        return BatchSums(found.nats, found.loss, None, out.losses)

    def _classes(self, columns: RowColumns) -> Tensor:
        """The index of each row's class [B]."""
        assert self.config.first_class is not None, "answers are classes"
        return columns.answers[:, 0] - self.config.first_class

    def guess(self, model: Model) -> float:
        head = model.head if self._reads_whole(model) else None
        return math.log(max(2, head.n_outputs if isinstance(head, Classifier) else model.vocab_size))

    def measure(self, model: Model, examples: RowExamples, batches: int | None = None) -> Validation:
        """Measure each row once, in order."""
        groups, nats = in_batches(examples.size, self.settings.rows), 0.0
        right, answers = list[np.ndarray](), Counter[int]()
        with evaluating(model) as device:
            for index in spread(groups, batches):
                rows = examples.rows(index)
                log_probs, correct = self._predicted(model, on_device(row_columns(rows), device))
                nats -= finite(log_probs.double().sum(), examples.name)
                right.append(correct.cpu().numpy())
                answers.update(rows.answers.reshape(-1).tolist())
        part, total, often = part_measured(batches, len(groups)), answers.total(), self.config.chance
        return Validation(None, nats / total, total, 0, f"each row of {examples.name} once{part}",
                          _measures(np.concatenate(right), max(answers.values()) / total if often is None else often),
                          "accuracy", rising=True, unit=self.declared.unit)

    def _predicted(self, model: Model, columns: RowColumns) -> tuple[Tensor, Tensor]:
        """The log-probability of each answer, and whether it is the most probable one, both [B,K]."""
        if self._reads_whole(model):
            scores, _ = head_scores(model, EncoderInputs(tokens=columns.ids), columns.span)
            answers = self._classes(columns)
            return -negative_log_likelihood(scores, answers)[:, None], (scores.argmax(-1) == answers)[:, None]
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        h = _carried(model, columns) if columns.ids.shape[1] > PIECE else _at(
            model.hidden(columns.ids, None, columns.span).y, columns.places)
        return model.readout.log_prob(h, columns.answers), model.readout.logits(h).argmax(-1) == columns.answers

    def fit(self, model: Model, examples: RowExamples) -> None:
        """Count every row up to each of its answers, the answer behind it, as a document of its own."""
        if not isinstance(model, Counted):
            raise by_gradients(self, model)
        if len(examples) > COUNTED:
            raise ConfigError([f"task.rows: {examples.size:,} rows of {examples.longest:,} tokens, and a model of kind "
                               f"{model.config.kind!r} counts them all. Give rows of {COUNTED:,} tokens at most."])
        documents = list[np.ndarray]()
        for index in in_batches(examples.size, self.settings.rows):
            rows = examples.rows(index)
            documents += [np.append(ids[:place + 1], answer) for ids, places, answers in
                          zip(rows.ids, rows.places, rows.answers, strict=True)
                          for place, answer in zip(places, answers, strict=True)]
        begins = np.zeros(sum(map(len, documents)), dtype=bool)
        begins[np.cumsum([0, *map(len, documents[:-1])])] = True
        model.fit(torch.from_numpy(np.concatenate(documents)), torch.from_numpy(begins))


def row_columns(rows: AnsweredRows) -> RowColumns:
    """The columns of rows."""
    ids, places, answers = (torch.from_numpy(np.ascontiguousarray(each)) for each in
                            (rows.ids, rows.places, rows.answers))
    return RowColumns(ids, places, answers,
                      Span(count=None if rows.count is None else torch.from_numpy(rows.count), fresh=True))


def _measures(right: np.ndarray, chance: float) -> dict[str, float]:
    """The measures, from whether each answer [n,K] is right."""
    rows = right.mean(1)
    error = float(rows.std(ddof=1)) / math.sqrt(len(rows)) if len(rows) > 1 else math.nan
    whole = {"whole_rows": float(right.all(1).mean())} if right.shape[1] > 1 else {}
    return {"accuracy": float(rows.mean()), "accuracy_standard_error": error, **whole, "chance": chance}


def _at(h: Tensor, places: Tensor) -> Tensor:
    """The vectors [B,K,D] of ``h`` [B,T,D] at ``places`` [B,K]."""
    return h.gather(1, places[..., None].expand(-1, -1, h.shape[-1]))


def _carried(model: LanguageModel, columns: RowColumns) -> Tensor:
    """The result of `_at` for a long row, which is read in pieces, so that memory is bounded where the state is."""
    size, length = columns.ids.shape
    state: ModelState | None = model.init_state(size, capacity=length, device=columns.ids.device, horizon=length)
    found: Tensor | None = None
    for first in range(0, length, PIECE):
        ids = columns.ids[:, first:first + PIECE]
        count = None if columns.span.count is None else (columns.span.count - first).clamp(0, ids.shape[1])
        out = model.hidden(ids, state, Span(count=count, fresh=first == 0))
        state = out.state
        inside = (columns.places >= first) & (columns.places < first + ids.shape[1])
        h = _at(out.y, (columns.places - first).clamp(0, ids.shape[1] - 1))
        found = torch.where(inside[..., None], h, torch.zeros_like(h) if found is None else found)
    assert found is not None, "a row has tokens"
    return found
