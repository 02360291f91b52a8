"""Functions for tasks on running text: batches of a stream, their tensors and spans."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from weft.core.model import LanguageModel, Model, ModelState
from weft.core.span import Span
from weft.data import Batch, Batches, PackedBatches, SequentialBatches, ShuffledBatches, TokenStream
from weft.data.mixed_batches import mixed_batches
from weft.data.tensors import to_tensors
from weft.tasks.base import BatchSums, TaskSettings
from weft.tasks.objective import ObjectiveSettings, cross_entropy

T = TypeVar("T", bound=Batches)


class TextGiven(NamedTuple):
    """A batch of running text on a device: input ids, targets and which targets are scored, all [B,T], and the span."""

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    span: Span


def given_text(batch: Batch, device: torch.device | str) -> TextGiven:
    """``batch`` as tensors."""
    here = to_tensors(batch, device)
    return TextGiven(here.inputs, here.targets, here.scored, span_of(batch, here.begins, here.count))


def span_of(batch: Batch, begins: Tensor, count: Tensor | None = None) -> Span:
    """The span of a batch, with ``begins`` and ``count`` on the model's device. A row that starts without a state needs
    no mark on its first token; if no other document begins in the batch, ``begins`` is left out, which allows the fast
    kernels."""
    inner = batch.begins[:, 1:] if batch.fresh else batch.begins
    return Span(count=count, begins=begins if inner.any() else None, fresh=batch.fresh)


def text_loss(model: Model, given: TextGiven, state: ModelState | None, objective: ObjectiveSettings) -> BatchSums:
    """The loss of the scored targets, each predicted from the tokens before it."""
    assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
    out = model.hidden(given.inputs, state, given.span)
    found = cross_entropy(model.readout, out.y, given.targets, given.scored, objective)
    return BatchSums(found.nats, found.loss, out.state, out.losses, found.by_row)


class MadeOfText(Generic[T]):
    """Batches that are made of those of a text, each a pure function of seed and step. A class of them adds ``batch``.

    Args:
        text: the batches of running text.
    """

    def __init__(self, text: T) -> None:
        self.text = text

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self.text.rows

    @property
    def steps_per_epoch(self) -> float:
        """Batches of one pass over the text."""
        return self.text.steps_per_epoch

    @property
    def tokens_per_batch(self) -> float:
        """Tokens of a batch."""
        return self.text.tokens_per_batch


def text_batches(settings: TaskSettings, stream: TokenStream) -> Batches:
    """The batches of a run on a stream, in its order.

    Raises:
        DataError: the text is too short for a batch.
    """
    if stream.sources is not None:
        return mixed_batches(stream, packing=settings.packing, rows=settings.rows, length=settings.context,
                             seed=settings.seed, reshuffle=settings.reshuffle)
    kind: type[ShuffledBatches | SequentialBatches | PackedBatches] = ShuffledBatches
    if settings.carry_state:
        kind = SequentialBatches
    elif settings.packing == "documents":
        kind = PackedBatches
    return kind(stream, rows=settings.rows, length=settings.context, seed=settings.seed, reshuffle=settings.reshuffle)
