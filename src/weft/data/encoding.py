"""From documents to tokens, many at a time, long ones in stretches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.core.errors import TokenizerError
from weft.data.document import Document, Segment
from weft.data.layout import EncodedPart
from weft.tokenizers import Encoded, Tokenizer
from weft.tokenizers.lost import STRETCH_NATS, untold_nats
from weft.tokenizers.split_points import STRETCH, TextPart, measured, stretches

BATCH_CHARACTERS = 1 << 19
"""Characters that are encoded in one call: enough for all threads of the tokenizer, and few enough to report progress
and to limit the memory of the library's results."""

BATCH_STRETCHES = 1 << 12
"""Texts that are encoded in one call, where documents are short: each costs as much as some hundred characters."""


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[list[EncodedPart]]:
    """The tokens of each document, in order, in batches: many documents are encoded at a time, so that a tokenizer that
    has threads uses them, and long ones in stretches.

    Scored and unscored text is encoded separately, as in use: a prompt is encoded before its answer exists. No token
    belongs to both.

    Raises:
        TokenizerError: the tokenizer cannot express a text; ``where`` names the document.
    """
    for batch in _batches(documents, tokenizer):
        yield [_part(each, place) for each, place in zip(_measured(batch, tokenizer), batch, strict=True)]


class _Place(NamedTuple):
    """A stretch of a document; ``first``: the index of its first character in the document."""

    document: Document
    stretch: TextPart
    first: int
    opens: bool
    closes: bool
    scored: bool


def _part(encoded: Encoded, place: _Place) -> EncodedPart:
    text, lost = place.stretch.text, encoded.lost
    if lost is not None and not place.opens:
        lost[0] += STRETCH_NATS
    without = (0, 0.0) if len(encoded.ids) else (len(text.encode()), untold_nats(text))
    return EncodedPart(encoded.ids, encoded.byte_lengths, place.opens, place.closes, place.scored,
                       place.document.end_scored, lost, *without)


def _places(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[_Place]:
    for document in documents:
        found = ((each, segment.scored) for segment in document.segments() for each in _of_segment(segment, tokenizer))
        (stretch, scored), first, opens = next(found, (TextPart(""), True)), 0, True
        for following, counts in found:
            yield _Place(document, stretch, first, opens, closes=False, scored=scored)
            first += len(stretch.text) + following.skipped
            stretch, scored, opens = following, counts, False
        yield _Place(document, stretch, first, opens, closes=True, scored=scored)


def _of_segment(segment: Segment, tokenizer: Tokenizer) -> Iterable[TextPart]:
    # No search for seams in short texts, of which there may be millions.
    if len(segment.utf8) <= STRETCH:
        return (TextPart(str(segment.utf8, "utf-8")),)
    return stretches(tokenizer, segment.parts())


def _batches(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[list[_Place]]:
    batch: list[_Place] = []
    characters = 0
    for place in _places(documents, tokenizer):
        batch.append(place)
        characters += len(place.stretch.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_STRETCHES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _measured(batch: list[_Place], tokenizer: Tokenizer) -> list[Encoded]:
    try:
        return measured(tokenizer, [place.stretch for place in batch])
    except TokenizerError:
        for place in batch:
            try:
                tokenizer.measure(place.stretch.text)
            except TokenizerError as error:
                behind = "" if place.opens else f", counted from character {place.first:,}"
                raise TokenizerError(error.what, where=f"{place.document.name}{behind}", remedy=error.remedy) from None
        raise
