"""Perplexity against the length of the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from weft.core.errors import DataError, InputError
from weft.core.model import LanguageModel
from weft.core.strict_json import Record
from weft.data import TokenStream
from weft.evaluation import Evaluation, evaluate


@final
@dataclass(frozen=True)
class Stage(Record):
    """The model at one stage: as it was, rescaled, or trained on after that.

    Attributes:
        name: of the stage.
        evaluations: one for each length, on the same tokens.
    """

    name: str
    evaluations: tuple[Evaluation, ...]


def measure(name: str, model: LanguageModel, stream: TokenStream, lengths: Sequence[int], batch_tokens: int) -> Stage:
    """The model's perplexity at these lengths: windows of each length that advance by half of it, so that all tokens
    but those of the first window are predicted from more than half a window.

    Args:
        name: of the stage.
        model: it need not have been trained for these lengths.
        stream: what is predicted.
        lengths: of windows, in tokens.
        batch_tokens: tokens that are run together, as far as whole windows allow.
    """
    return Stage(name, tuple(
        evaluate(model, stream, context=length, stride=max(length // 2, 1), batch_size=max(batch_tokens // length, 1))
        for length in lengths))


def doubled(trained: int, context: int) -> tuple[int, ...]:
    """Lengths from half of the trained one, each twice the one before, up to the new context, which is the last."""
    found, length = [], max(trained // 2, 1)
    while length < context:
        found.append(length)
        length *= 2
    return (*found, context)


def require_lengths(lengths: Sequence[int], tokens: int) -> tuple[int, ...]:
    """The lengths in order.

    Raises:
        InputError: none, one that is not positive, or one that the tokens which are measured do not fill.
    """
    wrong = [length for length in lengths if not 1 <= length < tokens]
    if wrong or not lengths:
        raise InputError(f"{wrong[0] if wrong else 'no'} tokens of context, measured on {tokens:,} tokens.",
                         where="lengths", remedy=f"Give lengths from 1 to {tokens - 1:,}, or measure on more tokens.")
    return tuple(sorted(set(lengths)))


def beyond(stream: TokenStream, trained: int) -> float:
    """The share of a text's tokens that stand farther into their document than the trained context."""
    places = np.arange(len(stream))
    starts = np.maximum.accumulate(np.where(np.asarray(stream.begins[:]), places, 0))
    return float(np.mean(places - starts >= trained))


def require_long(stream: TokenStream, trained: int) -> float:
    """The share of tokens beyond the trained context, which must not be nought.

    Raises:
        DataError: no document is longer than the trained context, so that greater lengths change nothing.
    """
    share = beyond(stream, trained)
    if share == 0.0:
        raise DataError(f"none of the {len(stream):,} tokens measured stands farther than the trained context, "
                        f"{trained:,} tokens, into its document, so longer contexts change nothing.",
                        where=stream.corpus, remedy="Give a text of longer documents, or documents=file for text that "
                        "is divided into short ones.")
    return share


def part_of(stream: TokenStream, start: int, stop: int) -> TokenStream:
    """Tokens from ``start`` up to ``stop``, in memory; the first of them begins a document."""
    begins = np.array(stream.begins[start:stop])
    begins[:1] = True
    cut: dict[str, Any] = {name: np.asarray(getattr(stream, name)[start:stop]) for name in ("tokens", "byte_lengths")}
    flags = None if stream.flags is None else np.asarray(stream.flags[start:stop])
    return replace(stream, begins=begins, flags=flags, repeated=None,
                   corpus=f"tokens {start:,} to {stop:,} of {stream.corpus}", **cut)
