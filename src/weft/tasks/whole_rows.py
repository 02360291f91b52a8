"""Rows that a model reads whole: checked against it, and in batches with the types of their tokens and their global
tokens, if the model reads these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.errors import InputError
from weft.core.heads import outputs
from weft.core.model import EncoderInputs, Model
from weft.core.span import Span
from weft.evaluation.measuring import evaluating

ROWS = 16
"""Rows of a batch; the results do not depend on it."""


@dataclass(frozen=True)
class WholeRow:
    """One row.

    Attributes:
        types: the segment id of each token; None: not given.
        globals_: 1 for each token that is global, else 0; None: not given.
    """

    tokens: tuple[int, ...]
    types: tuple[int, ...] | None = None
    globals_: tuple[int, ...] | None = None


def whole_rows(model: Model, rows: Sequence[WholeRow | Sequence[int]],
               seconds: Sequence[int] | None = None) -> list[WholeRow]:
    """The rows, checked.

    Args:
        rows: ids, or rows with types and global tokens.
        seconds: of each row, how many ids at its end belong to the second text of a pair and so have type 1 in a model
            with at least two types; None: none.

    Raises:
        InputError: a row is empty, too long, or has ids outside the vocabulary; types or global tokens that the model
            does not read, that are not one for each token, or lie beyond its table.
    """
    seconds = [0] * len(rows) if seconds is None else seconds
    made = [row if isinstance(row, WholeRow) else _paired(model, tuple(row), second)
            for row, second in zip(rows, seconds, strict=True)]
    for index, row in enumerate(made):
        _check(model, row, f"rows[{index}]")
    return made


def read(model: Model, rows: Sequence[WholeRow], device: torch.device,
         size: int = ROWS) -> Iterator[tuple[list[WholeRow], Span, Tensor]]:
    """Batches of ``size`` checked rows with their spans and hidden vectors [B,S,D]."""
    for first in range(0, len(rows), size):
        group = list(rows[first:first + size])
        span = Span(count=torch.tensor([len(row.tokens) for row in group], device=device))
        yield group, span, model.vectors(inputs_of(group, device), span).y


def inputs_of(rows: Sequence[WholeRow], device: torch.device | str) -> EncoderInputs:
    """Rows as tensors, padded on the right with zeros; types and global tokens only where a row has them."""
    types = padded([row.types or () for row in rows], rows, device) if any(row.types for row in rows) else None
    marks = (padded([row.globals_ or () for row in rows], rows, device).bool()
             if any(row.globals_ is not None for row in rows) else None)
    return EncoderInputs(tokens=padded([row.tokens for row in rows], rows, device), types=types, globals_=marks)


def padded(values: Sequence[Sequence[int]], rows: Sequence[WholeRow], device: torch.device | str) -> Tensor:
    """Numbers for each token of each row, [B,S]."""
    found = torch.zeros(len(rows), max(len(row.tokens) for row in rows), dtype=torch.int64)
    for place, each in enumerate(values):
        found[place, :len(each)] = torch.tensor(each, dtype=torch.int64)
    return found.to(device)


def head_outputs(model: Model, rows: Sequence[WholeRow | Sequence[int]]) -> tuple[Tensor, ...]:
    """The output of a model's head for each row, in float32: logits [T,V] of tokens, scores [C] of the row or [T,C] of
    its tokens; the hidden vectors [T,D] where it has no head. Raises `InputError`: see `whole_rows`."""
    found: list[Tensor] = []
    with evaluating(model) as device:
        for group, span, h in read(model, whole_rows(model, rows), device):
            values = outputs(model.head, h, span).float().cpu()
            found += [each if values.dim() == 2 else each[:len(row.tokens)].clone()
                      for each, row in zip(values, group, strict=True)]
    return tuple(found)


def mean_vectors(model: Model, rows: Sequence[WholeRow | Sequence[int]],
                 seconds: Sequence[int] | None = None, *, size: int = ROWS) -> list[Tensor]:
    """The mean of each row's hidden vectors over its tokens, scaled to length 1: [D] in float32; ``size`` rows are
    computed at once. Raises `InputError`: see `whole_rows`."""
    found: list[Tensor] = []
    with evaluating(model) as device:
        for group, _, h in read(model, whole_rows(model, rows, seconds), device, size):
            means = [each[:len(row.tokens)].float().mean(0) for each, row in zip(h, group, strict=True)]
            found += [torch.nn.functional.normalize(each, dim=0).cpu() for each in means]
    return found


def _paired(model: Model, tokens: tuple[int, ...], second: int) -> WholeRow:
    """A text or a pair as a row. A model with one type gives it to every token (RoBERTa)."""
    known = model.reads().get("types", 0) > 1 and second
    return WholeRow(tokens, types=(0,) * (len(tokens) - second) + (1,) * second if known else None)


def _check(model: Model, row: WholeRow, where: str) -> None:
    limit, size, sizes = model.limit(), model.vocab_size, model.reads()
    if not row.tokens:
        raise InputError("no tokens.", where=where, remedy="Give at least one.")
    if limit is not None and len(row.tokens) > limit:
        raise InputError(f"{len(row.tokens)} tokens, and this model has positions for {limit} tokens.", where=where,
                         remedy="Give a shorter row.")
    if not all(0 <= token < size for token in row.tokens):
        raise InputError(f"an id outside the vocabulary, 0 .. {size - 1}.", where=where,
                         remedy="Encode the text with the tokenizer that the model was trained with.")
    for name, given, key in (("types", row.types, "types"), ("global", row.globals_, "globals_")):
        if given is not None:
            _check_beside(given, len(row.tokens), sizes.get(key), f"{where}.{name}", name)


def _check_beside(given: Sequence[int], count: int, size: int | None, where: str, name: str) -> None:
    """Check numbers that stand beside the tokens of a row; ``size``: how many different ones the model reads."""
    if size is None:
        raise InputError(f"this model does not read {name}.", where=where, remedy="Leave them out.")
    if len(given) != count:
        raise InputError(f"{len(given)} for {count} tokens.", where=where, remedy="Give one for each token.")
    wrong = next((place for place, each in enumerate(given) if not 0 <= each < size), None)
    if wrong is not None:
        raise InputError(f"{given[wrong]}, and this model has {', '.join(map(str, range(size)))} alone."
                         if size <= 4 else f"{given[wrong]}, and this model has 0 to {size - 1}.",
                         where=f"{where}[{wrong}]", remedy="Give one of these for each token.")
