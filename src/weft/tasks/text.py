"""What tasks on running text share: batches of a stream as tensors, and what a batch does to each row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.core.span import Span
from weft.data import Batch, Batches, PackedBatches, SequentialBatches, ShuffledBatches, TokenStream
from weft.data.tensors import to_tensors
from weft.tasks.base import TaskSettings


class TextGiven(NamedTuple):
    """A batch of running text on a device: ids, what is to be predicted and where it counts, all [B,T], and what the
    batch does to each row."""

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    span: Span


def given_text(batch: Batch, device: torch.device | str) -> TextGiven:
    """``batch`` as tensors."""
    here = to_tensors(batch, device)
    return TextGiven(here.inputs, here.targets, here.scored, span_of(batch, here.begins, here.count))


def span_of(batch: Batch, begins: Tensor, count: Tensor | None = None) -> Span:
    """What the batch does to each row; ``begins`` and ``count`` are the batch's, on the model's device. A row that
    starts afresh needs no mark on its first token, and a batch in which no other document begins is not packed, so that
    it can take the fast paths."""
    inner = batch.begins[:, 1:] if batch.fresh else batch.begins
    return Span(count=count, begins=begins if inner.any() else None, fresh=batch.fresh)


def text_batches(settings: TaskSettings, stream: TokenStream) -> Batches:
    """The batches of a run on a stream, in its order.

    Raises:
        DataError: a text shorter than one batch needs.
    """
    kind: type[ShuffledBatches | SequentialBatches | PackedBatches] = ShuffledBatches
    if settings.carry_state:
        kind = SequentialBatches
    elif settings.packing == "documents":
        kind = PackedBatches
    return kind(stream, rows=settings.rows, length=settings.context, seed=settings.seed, reshuffle=settings.reshuffle)
