"""Rows of different lengths as one batch: right padding and a count. Left padding is re-aligned here, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.errors import InputError
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Memory, Span
from weft.decoding.rows import Row


@dataclass(frozen=True)
class Ragged:
    """A batch of rows, padded on the right.

    Attributes:
        tokens: ids; 0 beyond a row's count.
        count: tokens of each row.
        level: all rows have the same count.
    """

    tokens: Int64[Tensor, "B T"]
    count: Int64[Tensor, " B"]
    level: bool

    @property
    def longest(self) -> int:
        """T, the tokens of the longest row."""
        return self.tokens.shape[1]

    @property
    def counts(self) -> Int64[Tensor, " B"] | None:
        """What `Span.count` wants: None when every row has T tokens, so that kernels need no mask."""
        return None if self.level else self.count


def ragged(rows: Sequence[Sequence[int]], device: torch.device | str | None = None) -> Ragged:
    """The rows as one batch."""
    lengths = [len(row) for row in rows]
    tokens = torch.zeros(len(rows), max(lengths, default=0), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return Ragged(tokens.to(device), torch.tensor(lengths, device=device), len(set(lengths)) <= 1)


def realign(tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Ragged:
    """A batch padded on either side, its tokens moved to the left.

    Args:
        tokens: ids, anything where ``mask`` is false.
        mask: true for the tokens of each row, which stand side by side.

    Raises:
        InputError: a row with padding between its tokens: rows advance by a count, so nothing in them can be skipped.
    """
    if tokens.shape != mask.shape:
        raise InputError(f"shape {tuple(mask.shape)} for tokens of shape {tuple(tokens.shape)}.", where="mask",
                         remedy="Give one flag for each token.")
    mask = mask.bool()
    runs = (mask[:, :1].long().sum(1) + (mask[:, 1:] & ~mask[:, :-1]).sum(1)).tolist()
    for index, number in enumerate(runs):
        if number > 1:
            raise InputError(f"row {index} has padding between its tokens.", where="mask",
                             remedy="Pad on the left or on the right only.")
    count = mask.sum(1)
    order = (~mask).long().argsort(dim=1, stable=True)
    longest = int(count.max()) if count.numel() else 0
    moved = (tokens * mask).gather(1, order)[:, :longest]
    return Ragged(moved, count, bool((count == longest).all()))


def encode_sources(model: LanguageModel, rows: Sequence[Row], device: torch.device) -> Memory | None:
    """The memory of the rows' sources; None for rows without one."""
    if not model.takes_source:
        return None
    batch = ragged([row.source or () for row in rows], device)
    span = None if batch.level else Span(count=batch.count)
    return model.encode(EncoderInputs(tokens=batch.tokens), span)
