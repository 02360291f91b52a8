"""`Task`: what a model is trained and measured on. Training knows models and tasks, and nothing of either's kind.

    problems(model)                   why the model does not fit, before anything is read
    material(data, tokenizer)         from the run's settings to examples to train on and held-out ones
    batches(examples)                 an endless sequence of batches, each a pure function of seed and step
    count(batch)                      what the loss is divided by
    given(batch, device)              the batch as tensors
    loss(model, given, state)         sums over the batch: one differentiable function, which can be compiled
    measure(model, examples, n)       what is measured on held-out examples, by name

A step of several batches, of accumulation or of several processes, minimises (sum of losses) / (sum of counts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.model import Model, ModelState
from weft.core.output import Loss
from weft.core.part_config import PartConfig
from weft.data import Repeated
from weft.data.settings import DataSettings
from weft.tasks.material import Material, split_corpus
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.validation import Validation
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig

HeldOut: TypeAlias = Literal["validation", "test"]


class Examples(Protocol):
    """What a task trains on or is measured by, such as a `weft.data.TokenStream`."""

    @property
    def repeated(self) -> Repeated | None:
        """Of held-out examples: how many stand in the training text too; None: not known."""

    def __len__(self) -> int:
        """Tokens."""


E = TypeVar("E", bound=Examples)
B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


class BatchSource(Protocol[B_co]):
    """An endless sequence of batches, as `weft.data.Batches` is: training resumes at any step without replaying the
    ones before, and what is drawn at random for a batch (masks) is drawn from the seed and the step."""

    @property
    def rows(self) -> int:
        """Rows of a batch."""

    @property
    def tokens_per_batch(self) -> float:
        """Tokens that a batch reads, without padding; the mean over an epoch where batches differ."""

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> B_co:
        """The batch of that step, from 0, or one process's rows of it: rows in order, as many for each."""


class Count(NamedTuple):
    """What a batch counts, and how it begins.

    Attributes:
        rows: of the batch.
        predictions: that count in the loss, which is divided by them: tokens, or examples.
        bytes: of text that they stand for; 0 where they stand for none.
        fresh: whether its rows start without a state carried from the batch before.
    """

    rows: int
    predictions: int
    bytes: int = 0
    fresh: bool = True


class Lengths(NamedTuple):
    """Tokens of a row that a model reads, without padding; means over an epoch where rows differ.

    Attributes:
        tokens: of the text, or of the target.
        source: of the source; None for a task without one.
    """

    tokens: float
    source: float | None = None


class Scored(NamedTuple):
    """Sums over a batch under a model.

    Attributes:
        nats: what is reported: the plain negative log-likelihood, or the plain error where values are predicted;
            without a gradient.
        loss: what is differentiated.
        state: after the batch, for rows that go on; None otherwise.
        losses: the model's own.
    """

    nats: Tensor
    loss: Tensor
    state: ModelState | None = None
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True)
class TaskSettings:
    """What a run says that its task obeys.

    Attributes:
        rows: of a batch.
        context: tokens of a row at most.
        seed: of the order of batches, and of what is drawn for them.
        reshuffle: every epoch has its own order; otherwise all have the first one's.
        carry_state: rows continue from batch to batch.
        packing: how documents lie in rows of running text, see `weft.data.settings.DataSettings`.
        objective: terms of the loss of tokens.
        labels: names of the classes that the model's head tells apart, in the order of their ids; none where they have
            no names.
    """

    rows: int
    context: int
    seed: int = 0
    reshuffle: bool = True
    carry_state: bool = False
    packing: Literal["stream", "documents"] = "stream"
    objective: ObjectiveSettings = ObjectiveSettings()
    labels: tuple[str, ...] = ()


class TaskConfig(PartConfig):
    """Base of task configurations, the group ``task``."""

    group: ClassVar[str] = "task"

    def create(self, settings: TaskSettings) -> Task[Any, Any]:
        """The task, in a run of those settings."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is made")

    def texts(self, data: DataSettings) -> Iterable[str]:
        """What a tokenizer learns from: the texts to train on.

        Raises:
            DataError: they cannot be read.
        """
        return split_corpus(data)[0].texts()

    def extra_ids(self, tokenizer: TokenizerConfig) -> int:
        """Ids that the model needs behind the tokenizer's, such as one for what is masked."""
        return 0

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        """Names of the classes that the records to train on have, for a head that names none; none for a task without
        classes.

        Raises:
            DataError: they cannot be read.
        """
        return ()


class Task(ABC, Generic[E, B]):
    """What a model is trained and measured on. E: its examples; B: its batches.

    Class attributes:
        name: its kind, for messages.
        carries: whether rows can continue from batch to batch (``training.carry_state``).
        packs: whether it obeys ``data.packing``.
        smooths: whether it obeys ``training.objective``.
        unit: of a prediction: what a loss is per.

    Attributes:
        measured_in: the unit of the loss itself.
    """

    name: ClassVar[str]
    carries: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    smooths: ClassVar[bool] = False
    unit: ClassVar[str] = "token"
    measured_in: str = "nats"

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    def problems(self, model: Model) -> list[str]:
        """Why this model cannot be trained on this task, or the run's settings do not go with it: each a line that
        begins with the field's path and ends with what to do. Nothing where all fit. It is asked before anything is
        read. A task adds its own; these hold for all."""
        found, limit = self._unheeded(), model.limit()
        if limit is not None and self.settings.context > limit:
            found.append(f"training.context: {self.settings.context} tokens, and the model's positions end at {limit}. "
                         f"Choose at most {limit}.")
        return found

    def require(self, model: Model) -> None:
        """Refuse a model that does not fit.

        Raises:
            ConfigError: listing all `problems`.
        """
        if found := self.problems(model):
            raise ConfigError(found)

    def _unheeded(self) -> list[str]:
        """Settings that this task would ignore."""
        settings, says = self.settings, f"which the task {self.name!r} does not have. Leave it out."
        given = [("training.carry_state: rows that go on from batch to batch,", settings.carry_state, self.carries),
                 ("data.packing: documents, rows of packed text,", settings.packing == "documents", self.packs),
                 ("training.objective: terms of the loss of tokens,", not settings.objective.plain, self.smooths)]
        return [f"{what} {says}" for what, asked, heeded in given if asked and not heeded]

    @abstractmethod
    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[E]:
        """What is trained on and measured by, read and encoded; the tokenizer learns from the training text alone.

        Raises:
            DataError: it cannot be used.
            TokenizerError: the tokenizer cannot be made, or cannot express the text.
            ConfigError: the settings do not agree with a prepared folder.
        """

    @abstractmethod
    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> E:
        """The examples that a run held out, for a model that it has trained.

        Raises:
            DataError: they cannot be read, there are none, or they were encoded by another tokenizer.
        """

    @abstractmethod
    def batches(self, examples: E) -> BatchSource[B]:
        """The batches to train on.

        Raises:
            DataError: too few examples for one batch.
        """

    def notice(self, batches: BatchSource[B]) -> str | None:
        """What is worth saying of the batches before the first step, in one line."""
        return None

    def lengths(self, batches: BatchSource[B]) -> Lengths:
        """Tokens of a row that the model reads, by which the operations of a step are counted."""
        return Lengths(batches.tokens_per_batch / batches.rows)

    @abstractmethod
    def count(self, batch: B) -> Count:
        """What the batch counts."""

    @abstractmethod
    def given(self, batch: B, device: torch.device | str) -> Any:
        """The batch as tensors (a NamedTuple of tensors and spans), whose shapes are those of every batch where the
        pass is to be compiled."""

    def start(self, model: Model, rows: int, device: torch.device | str) -> ModelState | None:
        """The state before the first batch of rows that go on from batch to batch; None where they do not."""
        return None

    @abstractmethod
    def loss(self, model: Model, given: Any, state: ModelState | None) -> Scored:
        """The sums over a batch that `given` gave. It reads no tensor on the host."""

    @abstractmethod
    def guess(self, model: Model) -> float:
        """The loss of one prediction by a guess that knows nothing (ln V): far above it a run has diverged."""

    @abstractmethod
    def measure(self, model: Model, examples: E, batches: int | None = None) -> Validation:
        """What is measured on held-out examples. The model's training mode is put back afterwards.

        Args:
            model: any that fits.
            examples: held out.
            batches: measure only so many batches, spread evenly; None: all.

        Raises:
            DataError: nothing to predict.
            FailedError: the model gives NaN.
        """

    def fit(self, model: Model, examples: E) -> None:
        """Fit a model that is counted, not trained by gradients.

        Raises:
            ConfigError: this task trains by gradients alone.
        """
        raise ConfigError([f"task: {self.name!r} trains by gradients, and a model of kind {model.config.kind!r} is "
                           "fitted by counting. Give task: next_token, or another model."])
