"""Statistics of a prepared folder, and windows of its tokens as training reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.core.strict_json import Record
from weft.data.array import TokenArray
from weft.data.batches import ShuffledBatches
from weft.data.duplicates import Repeated
from weft.data.prepared import PreparedData
from weft.data.prepared_manifest import AGAIN, PreparedPart
from weft.data.stream import SCORED, TokenStream
from weft.tokenizers import Tokenizer

PIECE = 1 << 22
OPENING = 24
"""Tokens of a document's beginning that are shown."""


@dataclass(frozen=True)
class FrequentToken:
    """An id, its text, and how often it occurs in a part."""

    id: int
    text: str
    count: int


@dataclass(frozen=True)
class LongDocument:
    """A document: its number, from 0, its count of tokens with those that open and close it, and its beginning."""

    number: int
    tokens: int
    opening: str


@dataclass(frozen=True)
class PartFacts:
    """One part of a prepared folder.

    Attributes:
        name: train, validation or test.
        text_bytes: UTF-8 bytes of their text.
        tokens: tokens of the part, those between documents included.
        shard_bytes: size of the shards' files.
        bytes_per_token: bytes of text divided by all tokens.
        scored_tokens: tokens that count in a loss and an evaluation where they are predicted.
        scored_bytes: bytes of text that the scored tokens represent.
        unused_ids: ids of the vocabulary that do not occur.
        frequent: the most frequent ids.
        corpus_sha256: hash of the part's text.
        in_training: of a held-out part, documents that are also in the training text; None: unknown.
        repeated: the same with the documents searched and the share of the text.
    """

    name: str
    documents: int
    text_bytes: int
    tokens: int
    shards: int
    shard_bytes: int
    bytes_per_token: float
    scored_tokens: int
    scored_bytes: int
    unused_ids: int
    frequent: tuple[FrequentToken, ...]
    longest: tuple[LongDocument, ...]
    corpus_sha256: str
    in_training: int | None
    repeated: Repeated | None


@dataclass(frozen=True)
class Inspection(Record):
    """A prepared folder.

    Attributes:
        corpus: the whole text in one line.
        tokenizer: name of the tokenizer.
        vocab_size: its number of ids.
        recipe: settings with which the folder was made.
        sources: number of files from which it was made.
        parts: train, validation and perhaps test.
        verified: whether every byte of every shard was compared with the manifest.
        changed_sources: source files that are missing or have changed since; None: not checked.
    """

    path: Path
    corpus: str
    corpus_sha256: str
    tokenizer: str
    vocab_size: int
    tokenizer_sha256: str
    recipe: dict[str, Any]
    sources: int
    parts: tuple[PartFacts, ...]
    verified: bool
    changed_sources: dict[str, str] | None


def inspect_data(data: PreparedData, *, verified: bool = False, most: int = 10, longest: int = 5) -> Inspection:
    """Compute the statistics of prepared data, reading all tokens once.

    Args:
        verified: whether it was opened with all its content checked; its sources are then compared too.
        most: how many frequent tokens are listed.
        longest: how many long documents are listed.

    Raises:
        DataError: a flag is unknown, or the number of scored tokens is not that of the manifest.
    """
    manifest, tokenizer = data.manifest, data.tokenizer()
    parts = tuple(_facts(name, part, data.stream(name), tokenizer, most, longest)
                  for name, part in manifest.parts.items())
    return Inspection(data.path, manifest.corpus, manifest.corpus_sha256, manifest.tokenizer.name,
                      manifest.tokenizer.vocab_size, manifest.tokenizer.fingerprint,
                      manifest.recipe.model_dump(mode="json"), len(manifest.sources), parts, verified,
                      data.changed_sources() if verified else None)


@dataclass(frozen=True)
class SampleWindow:
    """A window of tokens as training reads it.

    Attributes:
        pieces: its text, cut where documents begin.
        begins: whether its first token begins a document.
        tokens: number of its tokens.
        ids: the tokens.
    """

    pieces: tuple[str, ...]
    begins: bool
    tokens: int
    ids: tuple[int, ...]


def sample_data(data: PreparedData, part: str = "train", *, windows: int = 3, context: int = 128,
                seed: int = 0) -> list[SampleWindow]:
    """The first windows that a training run with this context and order seed, and ``packing: stream``, would read.
    Raises `DataError`: there is no such part, ``windows`` is below 1, or the context exceeds the part's tokens."""
    batch = ShuffledBatches(data.stream(part), rows=windows, length=context, seed=seed).batch(0)
    tokenizer = data.tokenizer()
    return [_window(ids, begins, tokenizer) for ids, begins in zip(batch.inputs, batch.begins, strict=True)]


def _window(ids: Int64[np.ndarray, " T"], begins: np.ndarray, tokenizer: Tokenizer) -> SampleWindow:
    places = np.flatnonzero(begins)
    pieces = np.split(ids, places[places > 0])
    return SampleWindow(tuple(tokenizer.decode(piece) for piece in pieces), bool(begins[0]), len(ids),
                        tuple(ids.tolist()))


def _facts(name: str, part: PreparedPart, stream: TokenStream, tokenizer: Tokenizer, most: int,
           longest: int) -> PartFacts:
    counts = _counts(stream.tokens, stream.vocab_size)
    ranked = [int(token) for token in np.argsort(-counts, kind="stable")[:most] if counts[token]]
    files = [file for shard in part.shards for file in shard.files]
    scored, scored_bytes = _scored(stream)
    if scored != (part.tokens if part.scored_tokens is None else part.scored_tokens):
        raise DataError(f"{scored:,} tokens are flagged as scored, while the manifest has "
                        f"{part.tokens if part.scored_tokens is None else part.scored_tokens:,}.", where=name,
                        remedy=AGAIN)
    return PartFacts(
        name, part.documents, part.text_bytes, part.tokens, len(part.shards), sum(file.bytes for file in files),
        part.text_bytes / part.tokens, scored, scored_bytes, int((counts == 0).sum()),
        tuple(FrequentToken(token, tokenizer.decode([token]), int(counts[token])) for token in ranked),
        _longest(stream, tokenizer, longest), part.corpus_sha256, part.in_training,
        part.repeated)


def _counts(tokens: TokenArray, vocab_size: int) -> Int64[np.ndarray, " V"]:
    counts = np.zeros(vocab_size, dtype=np.int64)
    for first in range(0, len(tokens), PIECE):
        counts += np.bincount(tokens[first:first + PIECE], minlength=vocab_size)
    return counts


def _scored(stream: TokenStream) -> tuple[int, int]:
    """The number of scored tokens, and the bytes of text that they represent."""
    tokens, size = 0, 0
    for first in range(0, len(stream), PIECE):
        lengths = stream.byte_lengths[first:first + PIECE]
        flags = np.uint8(SCORED) if stream.flags is None else stream.flags[first:first + PIECE]
        if (flags & ~np.uint8(SCORED)).any():
            raise DataError("some tokens have flags that are unknown to this version of Weft.", where=stream.corpus,
                            remedy="Upgrade Weft, or prepare the data again with this one.")
        scored = np.broadcast_to(flags & SCORED != 0, lengths.shape)
        tokens += int(scored.sum())
        size += int(lengths[scored].sum(dtype=np.int64))
    return tokens, size


def _longest(stream: TokenStream, tokenizer: Tokenizer, count: int) -> tuple[LongDocument, ...]:
    starts = np.concatenate([first + np.flatnonzero(stream.begins[first:first + PIECE])
                             for first in range(0, len(stream), PIECE)])
    # A row whose separators are scored ends with one that opens no document.
    ends = np.append(starts[1:], len(stream))[:-1 if stream.begins_scored else None]
    sizes = ends - starts[:len(ends)]
    order = np.argsort(-sizes, kind="stable")[:count].tolist()
    return tuple(LongDocument(number, int(sizes[number]), tokenizer.decode(
        stream.tokens[int(starts[number]):int(min(ends[number], starts[number] + OPENING))])) for number in order)
