"""Perplexity as a function of the context's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.errors import DataError, InputError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record
from weft.data import TokenStream
from weft.evaluation import Evaluation, evaluate


@dataclass(frozen=True)
class Stage(Record):
    """Measurements of the model at one stage: before the extension, rescaled, or trained further after that.

    Attributes:
        name: name of the stage.
        evaluations: one for each length, on the same tokens.
    """

    name: str
    evaluations: tuple[Evaluation, ...]


def measure(model: LanguageModel, stream: TokenStream, length: int, batch_tokens: int) -> Evaluation:
    """Measure the model's perplexity at a length. Windows advance by half of it, so that all tokens but those of the
    first window are predicted from more than half a window.

    Args:
        model: the model, which need not have been trained for this length.
        stream: the text that is predicted.
        length: length of windows, in tokens.
        batch_tokens: number of tokens that run together, rounded down to whole windows; one window at least.
    """
    return evaluate(model, stream, context=length, stride=max(length // 2, 1),
                    batch_size=max(batch_tokens // length, 1))


def doubled(trained: int, context: int) -> tuple[int, ...]:
    """Return lengths from half of the trained one, each twice the one before, up to the new context, which is the
    last."""
    lengths, length = [], max(trained // 2, 1)
    while length < context:
        lengths.append(length)
        length *= 2
    return (*lengths, context)


def require_lengths(lengths: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Return the lengths in ascending order, without repeats. Raises `InputError`: there are no lengths, or one is not
    positive or not below ``tokens``, the number of tokens measured."""
    wrong = [length for length in lengths if not 1 <= length < tokens]
    if wrong or not lengths:
        raise InputError(f"{wrong[0] if wrong else 'no'} tokens of context cannot be measured on {tokens:,} tokens.",
                         where="lengths", remedy=f"Give lengths from 1 to {tokens - 1:,}, or measure on more tokens.")
    return tuple(sorted(set(lengths)))


def beyond(stream: TokenStream, trained: int) -> float:
    """Return the share of a text's tokens that are farther into their document than the trained context."""
    places = np.arange(len(stream))
    starts = np.maximum.accumulate(np.where(np.asarray(stream.begins[:]), places, 0))
    return float(np.mean(places - starts >= trained))


def require_long(stream: TokenStream, trained: int) -> float:
    """Return the share of tokens beyond the trained context, which must not be zero. Raises `DataError`: no document is
    longer than the trained context, so that longer contexts change nothing."""
    share = beyond(stream, trained)
    if share == 0.0:
        raise DataError(f"none of the {len(stream):,} tokens measured is farther into its document than the trained "
                        f"context, {trained:,} tokens, so longer contexts change nothing.",
                        where=stream.corpus, remedy="Give a text of longer documents, or documents=file for text that "
                        "is divided into short ones.")
    return share


def part_of(stream: TokenStream, start: int, stop: int) -> TokenStream:
    """Return the tokens from ``start`` up to ``stop``, in memory; the first of them begins a document."""
    begins = np.array(stream.begins[start:stop])
    begins[:1] = True
    cut: dict[str, Any] = {name: np.asarray(getattr(stream, name)[start:stop]) for name in ("tokens", "byte_lengths")}
    flags, lost = (None if column is None else np.asarray(column[start:stop]) for column in (stream.flags, stream.lost))
    return replace(stream, begins=begins, flags=flags, lost=lost, repeated=None,
                   corpus=f"tokens {start:,} to {stop:,} of {stream.corpus}", **cut)
