"""`Task`: what a model is trained and measured on: rows, a loss, measures. Training knows no kind of model or task.

    problems(model)                   why the model does not fit, before any data are read
    material(data, tokenizer)         examples to train on and held-out ones, by the run's settings
    batches(examples)                 an endless sequence of `Rows`, each a pure function of seed and step
    loss(model, columns, state)       sums over the rows: one differentiable function, which can be compiled
    measure(model, examples, n)       measures on held-out examples, by name

What its configuration declares is one record, `TaskDeclared`; what few tasks have is asked for by class
(`weft.tasks.protocols`). A step of several batches, of accumulation or of several processes, minimises (sum of losses)
/ (sum of counts).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.errors import ConfigError, refuse_unread
from weft.core.model import Classifier, EncoderInputs, LanguageModel, Model, ModelState
from weft.core.part_config import PartConfig
from weft.core.span import Loss, Span
from weft.data import Repeated
from weft.data.batch_source import BatchSource
from weft.data.orders import RowOrder
from weft.data.settings import DataSettings
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.protocols import AddsIds, ComparesWithStart, FitsByCounting, FitsInputs, HasClasses, MakesIds, OwnTexts
from weft.tasks.token_streams import HeldOut, Material
from weft.tasks.validation import Validation
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig


class Examples(Protocol):
    """The examples that a task trains on or is measured on, such as a `weft.data.TokenStream`."""

    @property
    def repeated(self) -> Repeated | None:
        """The number of held-out examples that are also in the training text; None: unknown."""

    def __len__(self) -> int:
        """Tokens."""


T = TypeVar("T", bound="TaskConfig")
E = TypeVar("E", bound=Examples)
C = TypeVar("C", bound=tuple[Any, ...])


class SourcedRows(NamedTuple):
    """The rows of a batch of a mixture, each an array of B numbers.

    Attributes:
        source: number of its source.
        tokens: that the model reads, without padding.
        predictions: that count in the loss.
    """

    source: Int64[np.ndarray, " B"]
    tokens: Int64[np.ndarray, " B"]
    predictions: Int64[np.ndarray, " B"]


class Count(NamedTuple):
    """The numbers of a batch.

    Attributes:
        predictions: tokens or examples that count in the loss, which is divided by their number.
        bytes: of text that the predictions represent; 0 if they represent none.
        fresh: whether its rows start without a state carried from the batch before.
        lost: nats for text that the predictions do not tell, which count in bits per byte alone; NaN if unknown.
        sources: its rows by their sources; None where the data are one text.
    """

    rows: int
    predictions: int
    bytes: int = 0
    fresh: bool = True
    lost: float = 0.0
    sources: SourcedRows | None = None


@dataclass(frozen=True, eq=False)
class Rows(Generic[C]):
    """A batch of rows.

    Attributes:
        columns: what the loss reads: a NamedTuple of tensors and of the call's span, in the memory of the host, whose
            shapes are those of every batch where the pass is to be compiled.
        count: the numbers of the batch.
    """

    columns: C
    count: Count


def on_device(columns: C, device: torch.device | str) -> C:
    """The columns of rows on a device. A GPU copies them while the host goes on."""
    copied = torch.device(device).type == "cuda"

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return on_device(value, device)
        if copied and isinstance(value, Tensor) and value.device.type == "cpu":
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device) if isinstance(value, Tensor | Span) else value

    return type(columns)(*map(moved, columns))


class BatchSums(NamedTuple):
    """Sums over a batch under a model.

    Attributes:
        nats: the reported sum: the plain negative log-likelihood, or the plain error where values are predicted;
            without a gradient.
        loss: the sum that is differentiated.
        state: after the batch, for rows that continue in the next; None otherwise.
        losses: auxiliary losses of the model.
        by_row: ``nats`` of each row, for a mixture of sources; None where there is none.
    """

    nats: Tensor
    loss: Tensor
    state: ModelState | None = None
    losses: tuple[Loss, ...] = ()
    by_row: Tensor | None = None


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a run that apply to its task.

    Attributes:
        context: tokens of a row at most.
        source_limit: tokens of a source at most, where its encoder has positions for fewer; None: no such limit.
        seed: of the order of batches, and of random choices for them.
        reshuffle: every epoch has its own order; otherwise all have the order of the first.
        carry_state: rows continue from batch to batch.
        packing: how documents are arranged in rows of running text, see `weft.data.settings.DataSettings`.
        objective: terms of the loss of tokens.
        labels: names of the classes of the model's head, in the order of their ids; empty if they have no names.
    """

    rows: int
    context: int
    seed: int = 0
    reshuffle: bool = True
    carry_state: bool = False
    packing: Literal["stream", "documents"] = "stream"
    objective: ObjectiveSettings = ObjectiveSettings()
    labels: tuple[str, ...] = ()
    source_limit: int | None = None

    @property
    def source_context(self) -> int:
        """Tokens of a source at most."""
        return self.context if self.source_limit is None else min(self.context, self.source_limit)

    def order(self, size: int, where: str) -> RowOrder:
        """The order of so many examples, of which a batch has ``rows``; ``where``: the data's name, for messages."""
        return RowOrder(size, rows=self.rows, seed=self.seed, reshuffle=self.reshuffle, where=where)

    def first_state(self, model: Model, rows: int, device: torch.device | str) -> ModelState | None:
        """The state before the first batch of rows that continue from batch to batch; None where they do not."""
        if not self.carry_state:
            return None
        assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
        return model.init_state(rows, device=device)


@dataclass(frozen=True, kw_only=True)
class TaskDeclared:
    """The declarations of a task about itself, which training reads.

    Attributes:
        unit: name of a prediction: the loss is per token, or per example.
        measured_in: the unit of the loss itself.
        carries: whether rows can continue from batch to batch (``training.carry_state``), with the state that its
            ``loss`` returns.
        packs: whether it supports ``data.packing``.
        smooths: whether it supports ``training.objective``.
        cuts: whether its loss is a sum over the tokens of a row, and the columns of its rows are a span and tensors
            [B,T], so that processes can compute pieces of the rows (``training.mesh.context``).
        mixes: whether its rows may come from several sources (``data.sources``): rows of running text, made by
            `weft.tasks.text.text_batches`, of which `Count.sources` and `BatchSums.by_row` tell the sources.
        values: the number of values that a head predicts for a row, for a task on values; None: it is on something
            else.
        rows_each: rows of a batch for each of ``training.batch_size``.
        row_tokens: tokens of a row at most, padding included; None: the context.
        batch_tokens: tokens of a batch at most, for batches of many shapes, so that a pass cannot be compiled for each;
            None: batches have one shape or few.
    """

    unit: str = "token"
    measured_in: str = "nats"
    carries: bool = False
    packs: bool = False
    smooths: bool = False
    cuts: bool = False
    mixes: bool = False
    values: int | None = None
    rows_each: int = 1
    row_tokens: int | None = None
    batch_tokens: int | None = None


IN_RECORD = "Return it as a field of weft.tasks.TaskDeclared from the method `declares` of the configuration."
OF_BATCHES = "It is asked of the batches: give it as a property of a weft.data.BatchSource."
IN_ROWS = "It comes with the rows: the batches give weft.tasks.Rows, with the tensors as `columns` and their `count`."
MOVED: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(TaskDeclared.__dataclass_fields__, IN_RECORD), "count": IN_ROWS, "given": IN_ROWS,
    "rows_of": "Give the sources of rows as weft.tasks.Count.sources.",
    **dict.fromkeys(("notice", "lengths"), OF_BATCHES),
    "mixed": "The batches of weft.tasks.text.text_batches say it themselves. Leave it out.",
    "name": "A task is called by the kind of its configuration. Leave it out.",
    "start": "The model's first state is made where the task declares `carries`. Leave it out.",
    "compares": "Inherit from weft.tasks.protocols.ComparesWithStart in its place.",
    "shapes_vary": "Return batch_tokens as a field of weft.tasks.TaskDeclared from the method `declares`.",
    "inputs_of": "Return rows_each, row_tokens or batch_tokens as fields of weft.tasks.TaskDeclared from the method "
                 "`declares`.",
    "values_predicted": "Return values as a field of weft.tasks.TaskDeclared from the method `declares`."})
"""Names that a task or its configuration would define for nothing, with where each belongs."""
ASKED_FOR: Mapping[type, tuple[str, ...]] = MappingProxyType({
    OwnTexts: ("texts",), MakesIds: ("vocabulary",), AddsIds: ("extra_ids",), HasClasses: ("labels",)})
"""What the configuration of a task may define besides, which is read of those that inherit from these classes alone."""
OF_TASKS: Mapping[type, tuple[str, ...]] = MappingProxyType({
    FitsByCounting: ("fit",), FitsInputs: ("begin",),
    ComparesWithStart: ("compared", "with_reference", "reference_of")})
"""The same of a task."""


class TaskConfig(PartConfig):
    """Base of task configurations, the group ``task``."""

    group: ClassVar[str] = "task"

    @classmethod
    def __pydantic_init_subclass__(cls, **given: Any) -> None:
        super().__pydantic_init_subclass__(**given)
        refuse_unread(cls, MOVED, ASKED_FOR)

    def declares(self) -> TaskDeclared:
        """The declarations that training reads."""
        return TaskDeclared()

    @abstractmethod
    def create(self, settings: TaskSettings) -> Task[Any, Any, Any]:
        """Create the task of a run with these settings."""


class Task(ABC, Generic[T, E, C]):
    """The data, loss and measures by which a model is trained. T: its configuration; E: its examples; C: the columns of
    its rows.

    It stores nothing of the data: training makes one with a run's settings to read the examples and another to batch
    them, so whatever batches, losses and measures need of the data (ids of sentinels, names of classes) is part of the
    examples.
    """

    def __init__(self, config: T, settings: TaskSettings) -> None:
        self.config, self.settings = config, settings
        self.declared = config.declares()
        self.name = config.kind

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_unread(cls, MOVED, OF_TASKS)

    def problems(self, model: Model) -> list[str]:
        """Why this model cannot be trained on this task with these settings: each a line that begins with the path of a
        field and ends with the remedy; empty if it can. No data are read. A subclass adds its own to these, which hold
        for all tasks."""
        found, limit = self._unheeded(), model.limit()
        if limit is not None and self.settings.context > limit:
            found.append(f"training.context: {self.settings.context} tokens, and the model's positions end at {limit}. "
                         f"Choose at most {limit}.")
        return found

    def _unheeded(self) -> list[str]:
        """Settings of the run that this task does not support."""
        settings, has, says = self.settings, self.declared, f"which the task {self.name!r} does not have. Leave it out."
        given = [("training.carry_state: rows that go on from batch to batch,", settings.carry_state, has.carries),
                 ("data.packing: documents, rows of packed text,", settings.packing == "documents", has.packs),
                 ("training.objective: terms of the loss of tokens,", not settings.objective.plain, has.smooths)]
        return [f"{what} {says}" for what, asked, heeded in given if asked and not heeded]

    @abstractmethod
    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[E]:
        """Read and encode the examples to train on and the held-out ones; the tokenizer learns from the training text
        alone.

        Raises:
            DataError: the data cannot be used.
            TokenizerError: the tokenizer cannot be made, or cannot express the text.
            ConfigError: the settings do not agree with a prepared folder.
        """

    @abstractmethod
    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> E:
        """The held-out examples of a run, for a model that it has trained. Raises `DataError`: they cannot be read,
        there are none, or another tokenizer encoded them."""

    @abstractmethod
    def batches(self, examples: E) -> BatchSource[Rows[C]]:
        """The batches to train on. Raises `DataError`: there are too few examples for one batch."""

    @abstractmethod
    def loss(self, model: Model, columns: C, state: ModelState | None) -> BatchSums:
        """The sums over a batch, whose columns are on the model's device. It reads no tensor on the host."""

    def guess(self, model: Model) -> float:
        """The loss of one prediction by a uniform guess, ln V for tokens: a run far above it has diverged."""
        return math.log(max(2, model.vocab_size))

    @abstractmethod
    def measure(self, model: Model, examples: E, batches: int | None = None) -> Validation:
        """Measure the model on held-out examples. Its training mode is restored afterwards.

        Args:
            batches: the number of batches to measure, evenly spread; None: all.

        Raises:
            DataError: there is nothing to predict.
            FailedError: the loss is NaN.
        """


AnyTask: TypeAlias = Task[Any, Any, Any]


def head_scores(model: Model, inputs: EncoderInputs, span: Span) -> tuple[Tensor, tuple[Loss, ...]]:
    """The scores of the model's head for inputs, in float32 or wider, and auxiliary losses of the model: of classes or
    values for each row [B,C], or for each token [B,T,C]."""
    assert isinstance(model.head, Classifier), "a model that does not fit is refused before"
    out = model.vectors(inputs, span)
    scores = model.head.scores(out.y, span)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)), out.losses


def require_fits(task: AnyTask, model: Model) -> None:
    """Check that a model fits a task. Raises `ConfigError`: it does not; all its problems are listed."""
    if found := task.problems(model):
        raise ConfigError(found)


def batches_of(task: AnyTask, examples: Any) -> BatchSource[Any]:
    """The batches of a task. Raises `ConfigError`: a plugin's task gives something else than a `BatchSource`."""
    found: object = task.batches(examples)
    if not isinstance(found, BatchSource):
        raise ConfigError([f"task: the batches of {task.name!r} are of the class {type(found).__qualname__}. Let its "
                           "method `batches` return an object of a subclass of weft.data.BatchSource."])
    return found


def fit_by_counting(task: AnyTask, model: Model, examples: Any) -> None:
    """Fit a model that is counted, not trained by gradients. Raises `ConfigError`: the task supports training by
    gradients alone."""
    if not isinstance(task, FitsByCounting):
        raise by_gradients(task, model)
    task.fit(model, examples)


def by_gradients(task: AnyTask, model: Model) -> ConfigError:
    """The error about a model that is fitted by counting on a task that trains by gradients alone."""
    return ConfigError([f"task: {task.name!r} trains by gradients, and a model of kind {model.config.kind!r} is fitted "
                        "by counting. Give task: next_token, or another model."])
