"""Functions for tasks on running text: batches of a stream, their columns and spans."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from weft.core.model import LanguageModel, Model, ModelState
from weft.core.span import Span
from weft.data import Batch, Batches, PackedBatches, SequentialBatches, ShuffledBatches, TokenStream
from weft.data.mixed_batches import mixed_batches
from weft.tasks.base import BatchSums, Count, Rows, SourcedRows, TaskSettings
from weft.tasks.objective import ObjectiveSettings, cross_entropy


class TextColumns(NamedTuple):
    """Rows of running text: input ids, targets and which targets are scored, all [B,T], and the span."""

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    span: Span


def text_columns(batch: Batch) -> TextColumns:
    """The columns of a batch."""
    inputs, targets, scored = map(torch.from_numpy, (batch.inputs, batch.targets, batch.scored))
    return TextColumns(inputs, targets, scored, span_of(batch))


def text_rows(batch: Batch) -> Rows[TextColumns]:
    """A batch whose scored targets count."""
    return Rows(text_columns(batch), Count(len(batch.inputs), batch.scored_tokens, batch.scored_bytes, batch.fresh,
                                           batch.lost, sourced_rows(batch, batch.scored)))


def sourced_rows(batch: Batch, counted: Bool[np.ndarray, "B T"]) -> SourcedRows | None:
    """The rows of a batch by their sources, with ``counted`` predictions; None for one text."""
    if batch.source is None:
        return None
    return SourcedRows(batch.source, batch.tokens_of_rows, counted.sum(1, dtype=np.int64))


def span_of(batch: Batch) -> Span:
    """The span of a batch. A row that starts without a state needs no mark on its first token; if no other document
    begins in the batch, ``begins`` is left out, which allows the fast kernels."""
    inner = batch.begins[:, 1:] if batch.fresh else batch.begins
    return Span(count=None if batch.count is None else torch.from_numpy(batch.count),
                begins=torch.from_numpy(batch.begins) if inner.any() else None, fresh=batch.fresh)


def text_loss(model: Model, columns: TextColumns, state: ModelState | None, objective: ObjectiveSettings) -> BatchSums:
    """The loss of the scored targets, each predicted from the tokens before it."""
    assert isinstance(model, LanguageModel), "a model that does not fit is refused before"
    out = model.hidden(columns.inputs, state, columns.span)
    found = cross_entropy(model.readout, out.y, columns.targets, columns.scored, objective)
    return BatchSums(found.nats, found.loss, out.state, out.losses, found.by_row)


def text_batches(settings: TaskSettings, stream: TokenStream) -> Batches:
    """The batches of a run on a stream, in its order. Raises `DataError`: the text is too short for a batch."""
    if stream.sources is not None:
        return mixed_batches(stream, packing=settings.packing, rows=settings.rows, length=settings.context,
                             seed=settings.seed, reshuffle=settings.reshuffle)
    kind: type[ShuffledBatches | SequentialBatches | PackedBatches] = ShuffledBatches
    if settings.carry_state:
        kind = SequentialBatches
    elif settings.packing == "documents":
        kind = PackedBatches
    return kind(stream, rows=settings.rows, length=settings.context, seed=settings.seed, reshuffle=settings.reshuffle)
