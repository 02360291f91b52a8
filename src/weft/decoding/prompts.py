"""Prompts: checked before anything is computed, as one padded batch of rows of different lengths, and read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.errors import InputError
from weft.core.model import EncoderInputs, LanguageModel, ModelState
from weft.core.span import Memory, Span
from weft.decoding.mode import device_of, require_causal, require_room
from weft.decoding.rows import Row, check_rows, with_start


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


def prepare(model: LanguageModel, rows: Sequence[Row], *, max_new_tokens: int, start: int | None) -> list[Row]:
    """The prompts that will be continued; everything that can be refused is refused here, before the model runs.

    Args:
        model: any causal language model.
        rows: prompts.
        max_new_tokens: tokens that each row may get.
        start: the token that opens a document, put before prompts that are empty.

    Raises:
        InputError: an id outside the vocabulary, an empty prompt without a start token, more tokens than the model
            has positions for.
        UnsupportedError: a bidirectional model.
    """
    require_causal(model, "decoding")
    return prepare_more(model, rows, max_new_tokens=max_new_tokens, start=start)


def prepare_more(model: LanguageModel, rows: Sequence[Row], *, max_new_tokens: int, start: int | None) -> list[Row]:
    """`prepare` for a model that is known to be causal, which takes a walk through all of its modules."""
    if max_new_tokens < 0:
        raise InputError(f"{max_new_tokens} is negative.", where="max_new_tokens", remedy="Give 0 or more.")
    check_rows(rows, model)
    prompts = with_start(rows, start, model, only_empty=True)
    for index, row in enumerate(prompts):
        if not row.tokens:
            raise InputError("an empty prompt, and no start token.", where=f"rows[{index}]",
                             remedy="Give at least one id, or a start token (a tokenizer's bos_id or eos_id).")
        consumed = len(row.tokens) + max(0, max_new_tokens - 1)
        require_room(model, consumed, f"rows[{index}]",
                     f"{len(row.tokens)} tokens of prompt and {max_new_tokens} new ones are {consumed} to read",
                     "Shorten the prompt or lower max_new_tokens.")
    return prompts


@dataclass(frozen=True, eq=False)
class Begun:
    """A state that has read the beginning of a row, to go on from.

    Attributes:
        tokens: what it has read.
        state: consumed by whoever goes on with it: clone it to keep it. It reserves nothing.
    """

    tokens: tuple[int, ...]
    state: ModelState


@torch.inference_mode()
def read_on(model: LanguageModel, tokens: Sequence[int], begun: Begun | None = None) -> Begun:
    """Read a row's tokens, those behind ``begun``, in a model without sources and in evaluation mode."""
    device, known = device_of(model), 0 if begun is None else len(begun.tokens)
    rest = torch.tensor([tokens[known:]], dtype=torch.int64, device=device)
    state = begun.state if begun is not None else model.init_state(
        1, device=device, horizon=torch.tensor([len(tokens)], device=device))
    out = model.hidden(rest, state, Span(fresh=begun is None, bound=len(tokens), uniform=True))
    return Begun(tuple(tokens), kept(out.state))


def kept(state: ModelState | None) -> ModelState:
    """The state that a call gave back which was given one."""
    assert state is not None, "a call with a state gives one back"
    return state
