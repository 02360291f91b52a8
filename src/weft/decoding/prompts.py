"""Prompts: their checks, their padded batches of rows of different lengths, and prompts read in advance."""

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
        count: number of tokens of each row.
        level: whether all rows have the same count.
    """

    tokens: Int64[Tensor, "B T"]
    count: Int64[Tensor, " B"]
    level: bool

    @property
    def longest(self) -> int:
        """T, the number of tokens of the longest row."""
        return self.tokens.shape[1]

    @property
    def counts(self) -> Int64[Tensor, " B"] | None:
        """The value for `Span.count`: None if every row has T tokens, so that kernels need no mask."""
        return None if self.level else self.count

    def first(self, prefixes: Sequence[int]) -> Bool[Tensor, "B T"] | None:
        """The value for `Span.prefix`: the first tokens of each row, as many as ``prefixes`` says; None if none are."""
        if not any(prefixes):
            return None
        lengths = torch.tensor(prefixes, device=self.tokens.device)
        return torch.arange(self.longest, device=self.tokens.device) < lengths[:, None]


def ragged(rows: Sequence[Sequence[int]], device: torch.device | str | None = None) -> Ragged:
    """Return the rows as one batch, padded on the right."""
    lengths = [len(row) for row in rows]
    tokens = torch.zeros(len(rows), max(lengths, default=0), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return Ragged(tokens.to(device), torch.tensor(lengths, device=device), len(set(lengths)) <= 1)


def encode_sources(model: LanguageModel, rows: Sequence[Row], device: torch.device) -> Memory | None:
    """Encode the rows' sources into a memory; None if the model takes no source."""
    if not model.takes_source:
        return None
    batch = ragged([row.source or () for row in rows], device)
    span = None if batch.level else Span(count=batch.count)
    return model.encode(EncoderInputs(tokens=batch.tokens), span)


def of_each_row(number: int | Sequence[int], rows: int, where: str) -> list[int]:
    """A number for each of ``rows`` rows, given for each or once for all. Raises `InputError`: there are more or fewer
    numbers than rows."""
    if isinstance(number, int):
        return [number] * rows
    if len(number) != rows:
        raise InputError(f"{len(number)} numbers for {rows} rows.", where=where, remedy="Give one for each row, or one "
                         "for all.")
    return list(number)


def prepare(model: LanguageModel, rows: Sequence[Row], *, max_new_tokens: int | Sequence[int],
            start: int | None, known: int | None = None) -> list[Row]:
    """Check the prompts, before the model runs, and return them as they will be continued.

    Args:
        model: any causal language model.
        max_new_tokens: maximum number of new tokens, of all rows or of each.
        start: the token that begins a document, put before empty prompts.
        known: number of tokens for which the model is known to have positions, and it is known to be causal; None:
            neither is known, and all modules are asked.

    Raises:
        InputError: an id outside the vocabulary, an empty prompt without a start token, or more tokens than the model
            has positions for.
        UnsupportedError: the model is bidirectional.
    """
    if known is None:
        require_causal(model, "decoding")
    most = of_each_row(max_new_tokens, len(rows), "max_new_tokens")
    if min(most, default=0) < 0:
        raise InputError(f"{min(most)} is negative.", where="max_new_tokens", remedy="Give 0 or more.")
    check_rows(rows, model)
    prompts = with_start(rows, start, model, only_empty=True)
    for index, row in enumerate(prompts):
        if not row.tokens:
            raise InputError("an empty prompt, and no start token.", where=f"rows[{index}]",
                             remedy="Give at least one id, or a start token (a tokenizer's bos_id or eos_id).")
        consumed = len(row.tokens) + max(0, most[index] - 1)
        if consumed > (known or 0):
            require_room(model, consumed, f"rows[{index}]",
                         f"{len(row.tokens)} tokens of prompt and {most[index]} new ones are {consumed} to read",
                         "Shorten the prompt or lower max_new_tokens.")
    return prompts


@dataclass(frozen=True, eq=False)
class PromptState:
    """The state after the beginning of a row, from which the row is continued.

    Attributes:
        tokens: the tokens that the state has consumed.
        state: the state, without capacity reserved for later tokens. A continuation consumes it; clone it to keep it.
    """

    tokens: tuple[int, ...]
    state: ModelState


@torch.inference_mode()
def read_on(model: LanguageModel, tokens: Sequence[int], begun: PromptState | None = None) -> PromptState:
    """Run a model without sources, in evaluation mode, on a row's tokens, or on those after ``begun``."""
    device, known = device_of(model), 0 if begun is None else len(begun.tokens)
    rest = torch.tensor([tokens[known:]], dtype=torch.int64, device=device)
    state = begun.state if begun is not None else model.init_state(
        1, device=device, horizon=torch.tensor([len(tokens)], device=device))
    out = model.hidden(rest, state, Span(fresh=begun is None, bound=len(tokens), uniform=True))
    return PromptState(tuple(tokens), kept(out.state))


def kept(state: ModelState | None) -> ModelState:
    """Return the state of an output whose call was given a state."""
    assert state is not None, "a call with a state returns one"
    return state
