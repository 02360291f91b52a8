"""`Task`: what a model is trained and measured on. Training depends on no kind of model or task.

    problems(model)                   why the model does not fit, before any data are read
    material(data, tokenizer)         examples to train on and held-out ones, by the run's settings
    batches(examples)                 an endless sequence of batches, each a pure function of seed and step
    count(batch)                      the number by which the loss is divided
    given(batch, device)              the batch as tensors
    loss(model, given, state)         sums over the batch: one differentiable function, which can be compiled
    measure(model, examples, n)       measures on held-out examples, by name

A step of several batches, of accumulation or of several processes, minimises (sum of losses) / (sum of counts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.model import Model, ModelState
from weft.core.output import Loss
from weft.core.part_config import PartConfig
from weft.data import Repeated
from weft.data.mixed_batches import MixedBatches
from weft.data.settings import DataSettings
from weft.tasks.material import Material, training_texts
from weft.tasks.objective import ObjectiveSettings
from weft.tasks.validation import Validation
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig

HeldOut: TypeAlias = Literal["validation", "test"]


class Examples(Protocol):
    """The examples that a task trains on or is measured on, such as a `weft.data.TokenStream`."""

    @property
    def repeated(self) -> Repeated | None:
        """The number of held-out examples that are also in the training text; None: unknown."""

    def __len__(self) -> int:
        """Tokens."""


E = TypeVar("E", bound=Examples)
B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


class BatchSource(Protocol[B_co]):
    """An endless sequence of batches, such as `weft.data.Batches`. Training resumes at any step without replaying
    earlier ones; random choices for a batch (masks) depend on the seed and the step alone."""

    @property
    def rows(self) -> float:
        """Rows of a batch; the mean over an epoch where batches differ."""

    @property
    def tokens_per_batch(self) -> float:
        """Tokens of a batch without padding; the mean over an epoch where batches differ."""

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> B_co:
        """The batch of that step, from 0, or one rank's rows of it: consecutive rows, equally many for each rank."""


class Count(NamedTuple):
    """The numbers of a batch.

    Attributes:
        rows: of the batch.
        predictions: tokens or examples that count in the loss, which is divided by their number.
        bytes: of text that the predictions represent; 0 if they represent none.
        fresh: whether its rows start without a state carried from the batch before.
        lost: nats for text that the predictions do not tell, which count in bits per byte alone; NaN if unknown.
    """

    rows: int
    predictions: int
    bytes: int = 0
    fresh: bool = True
    lost: float = 0.0


class Lengths(NamedTuple):
    """Tokens of a row that a model reads, without padding; means over an epoch where rows differ.

    Attributes:
        tokens: of the text, or of the target.
        source: of the source; None for a task without one.
    """

    tokens: float
    source: float | None = None


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


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a run that apply to its task.

    Attributes:
        rows: of a batch.
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


class TaskConfig(PartConfig):
    """Base of task configurations, the group ``task``.

    Class attributes:
        mixes: whether its rows may come from several sources (``data.sources``): rows of running text, made by
            `weft.tasks.text.text_batches`, whose losses `Task.rows_of` and `BatchSums.by_row` take apart.
    """

    group: ClassVar[str] = "task"
    mixes: ClassVar[bool] = False

    @property
    def shapes_vary(self) -> bool:
        """Whether batches have many shapes, so that a pass cannot be compiled for each."""
        return False

    def inputs_of(self, rows: int, context: int) -> int:
        """Inputs of a batch of ``rows`` rows of ``context`` tokens, padding included, at most."""
        return rows * context

    def create(self, settings: TaskSettings) -> Task[Any, Any]:
        """Create the task of a run with these settings."""
        raise NotImplementedError(f"{type(self).__name__} does not implement create")

    def texts(self, data: DataSettings) -> Iterable[str]:
        """The training texts, from which a tokenizer learns.

        Raises:
            DataError: they cannot be read.
        """
        return training_texts(data)

    def vocabulary(self, data: DataSettings) -> int | None:
        """How many ids the rows have that the task makes or reads by itself; None for text, whose tokenizer says it.

        Raises:
            DataError: the data cannot be read.
        """
        return None

    def extra_ids(self, tokenizer: TokenizerConfig) -> int:
        """How many ids the model needs after the tokenizer's, such as one for the mask."""
        return 0

    @property
    def values_predicted(self) -> int | None:
        """The number of values that a head predicts for a row, for a task on values; None: it is on something else."""
        return None

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        """Names of the classes in the training records, for a head that gives no names; empty for a task without
        classes.

        Raises:
            DataError: they cannot be read.
        """
        return ()


class Task(ABC, Generic[E, B]):
    """The data, loss and measures by which a model is trained. E: its examples; B: its batches.

    It stores nothing of the data: training makes one with a run's settings to read the examples and another to batch
    them, so whatever batches, losses and measures need of the data (ids of sentinels, names of classes) is part of the
    examples.

    Class attributes:
        name: its kind, for messages.
        carries: whether rows can continue from batch to batch (``training.carry_state``).
        packs: whether it supports ``data.packing``.
        smooths: whether it supports ``training.objective``.
        cuts: whether its loss is a sum over the tokens of a row, and `given` returns a span and tensors [B,T], so that
            processes can compute pieces of the rows (``training.mesh.context``).
        unit: name of a prediction: the loss is per token, or per example.
        compares: whether its loss compares the model with the one that the run starts from, which `compared` asks once.

    Attributes:
        measured_in: the unit of the loss itself.
    """

    name: ClassVar[str]
    carries: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    smooths: ClassVar[bool] = False
    cuts: ClassVar[bool] = False
    unit: ClassVar[str] = "token"
    compares: ClassVar[bool] = False
    measured_in: str = "nats"

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    def problems(self, model: Model) -> list[str]:
        """Why this model cannot be trained on this task with these settings: each a line that begins with the path of a
        field and ends with the remedy; empty if it can. No data are read. A subclass adds its own to these, which hold
        for all tasks."""
        found, limit = self._unheeded(), model.limit()
        if limit is not None and self.settings.context > limit:
            found.append(f"training.context: {self.settings.context} tokens, and the model's positions end at {limit}. "
                         f"Choose at most {limit}.")
        return found

    def require(self, model: Model) -> None:
        """Check that the model fits.

        Raises:
            ConfigError: it does not; all `problems` are listed.
        """
        if found := self.problems(model):
            raise ConfigError(found)

    def _unheeded(self) -> list[str]:
        """Settings of the run that this task does not support."""
        settings, says = self.settings, f"which the task {self.name!r} does not have. Leave it out."
        given = [("training.carry_state: rows that go on from batch to batch,", settings.carry_state, self.carries),
                 ("data.packing: documents, rows of packed text,", settings.packing == "documents", self.packs),
                 ("training.objective: terms of the loss of tokens,", not settings.objective.plain, self.smooths)]
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
        """The held-out examples of a run, for a model that it has trained.

        Raises:
            DataError: they cannot be read, there are none, or another tokenizer encoded them.
        """

    def compared(self, examples: E, reference: Model) -> E:
        """The examples, completed by what the reference, the model that the run starts from, says of them."""
        return examples

    def with_reference(self, examples: E, values: np.ndarray) -> E:
        """The examples, completed by the numbers that `reference_of` returned for the same ones.

        Raises:
            DataError: they are not as many as needed, or not finite.
        """
        return examples

    def reference_of(self, examples: E) -> np.ndarray:
        """The reference model's results for examples that `compared` returned, as numbers in float64."""
        return np.array([], dtype=np.float64)

    def begin(self, model: Model, examples: E) -> None:
        """Prepare a model with random weights for its first step, from the examples to train on alone: measure how its
        inputs are scaled. A model that starts from other weights has this from them."""

    @abstractmethod
    def batches(self, examples: E) -> BatchSource[B]:
        """The batches to train on.

        Raises:
            DataError: there are too few examples for one batch.
        """

    def notice(self, batches: BatchSource[B]) -> str | None:
        """A line about the batches that is shown before the first step; None: there is none."""
        return None

    def lengths(self, batches: BatchSource[B]) -> Lengths:
        """Tokens of a row that the model reads, by which the operations of a step are counted."""
        return Lengths(batches.tokens_per_batch / batches.rows)

    @abstractmethod
    def count(self, batch: B) -> Count:
        """The rows, predictions and bytes of the batch."""

    def mixed(self, batches: BatchSource[B]) -> MixedBatches | None:
        """The batches of a mixture of sources that ``batches`` are made of; None where the data are one text."""
        return None

    def rows_of(self, batch: B) -> SourcedRows | None:
        """The rows of a batch by their sources; None where the data are one text."""
        return None

    @abstractmethod
    def given(self, batch: B, device: torch.device | str) -> Any:
        """The batch as tensors (a NamedTuple of tensors and spans), whose shapes are those of every batch where the
        pass is to be compiled."""

    def start(self, model: Model, rows: int, device: torch.device | str) -> ModelState | None:
        """The state before the first batch of rows that go on from batch to batch; None where they do not."""
        return None

    @abstractmethod
    def loss(self, model: Model, given: Any, state: ModelState | None) -> BatchSums:
        """The sums over a batch that `given` converted. It reads no tensor on the host."""

    @abstractmethod
    def guess(self, model: Model) -> float:
        """The loss of one prediction by a uniform guess (ln V): a run far above it has diverged."""

    @abstractmethod
    def measure(self, model: Model, examples: E, batches: int | None = None) -> Validation:
        """Measure the model on held-out examples. Its training mode is restored afterwards.

        Args:
            model: any that fits.
            examples: held-out ones.
            batches: the number of batches to measure, evenly spread; None: all.

        Raises:
            DataError: there is nothing to predict.
            FailedError: the loss is NaN.
        """

    def fit(self, model: Model, examples: E) -> None:
        """Fit a model that is counted, not trained by gradients.

        Raises:
            ConfigError: this task supports training by gradients alone.
        """
        raise ConfigError([f"task: {self.name!r} trains by gradients, and a model of kind {model.config.kind!r} is "
                           "fitted by counting. Give task: next_token, or another model."])
