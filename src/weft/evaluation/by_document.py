"""The sums of each document of a corpus, and its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.strict_json import Record, plain
from weft.data import TokenStream
from weft.evaluation.measuring import exponential
from weft.tokenizers import Tokenizer


class Means:
    """The means that follow from sums over a text: ``nats``, scored ``tokens``, the ``bytes`` they represent, and the
    nats for text that they do not tell, ``lost``, which count per byte and per word and not per token."""

    nats: float
    tokens: int
    bytes: int
    lost: float

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity per token: exp(nats / tokens)."""
        return exponential(self.loss)

    @property
    def bits_per_byte(self) -> float | None:
        """(nats + lost) / ln 2 / bytes; None if the scored tokens represent no text, or what they lose is unknown."""
        known = self.bytes and not math.isnan(self.lost)
        return (self.nats + self.lost) / math.log(2) / self.bytes if known else None

    @property
    def lost_bits_per_byte(self) -> float:
        """The part of the bits per byte that is for text which the tokenizer loses; 0 where there are none."""
        return 0.0 if self.bits_per_byte is None else self.lost / math.log(2) / self.bytes


@dataclass(frozen=True)
class DocumentScore(Record, Means):
    """The sums over a document, and the measures that follow from them.

    Attributes:
        index: of the document in the corpus, from 0.
        nats: the sum of negative log-likelihoods; infinite if a scored token had probability zero.
        tokens: the number of scored tokens, at least 1.
        bytes: the bytes of UTF-8 text that they represent.
        impossible: the number of scored tokens with probability zero.
        lost: nats for text that they do not tell (`weft.tokenizers.lost`); NaN: unknown.
    """

    index: int
    nats: float
    tokens: int
    bytes: int
    impossible: int
    lost: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the means."""
        means = {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        return {**super().to_json(), **plain(means)}


class DocumentSums:
    """Sums by document, while a corpus is scored in any order.

    A token belongs to the document of the token before it, from which it is predicted: the token that ends a document
    counts in it, although it also begins the next.
    """

    def __init__(self, stream: TokenStream) -> None:
        begun = np.cumsum(np.asarray(stream.begins))
        self._document = begun - (1 if len(begun) and begun[0] else 0)
        self._lengths = np.asarray(stream.byte_lengths)
        count = int(self._document[-1]) + 1 if len(begun) else 0
        self._lost, self._nats, self._losses = stream.lost, np.zeros(count), np.zeros(count)
        self._tokens, self._bytes, self._impossible = (np.zeros(count, dtype=np.int64) for _ in range(3))

    def add(self, places: Int64[np.ndarray, " N"], nats: Float64[np.ndarray, " N"]) -> None:
        """Add scored tokens.

        Args:
            places: where the tokens stand in the stream; each is at least 1.
        """
        documents = self._document[places - 1]
        np.add.at(self._nats, documents, nats)
        np.add.at(self._tokens, documents, 1)
        np.add.at(self._bytes, documents, self._lengths[places].astype(np.int64))
        np.add.at(self._impossible, documents, np.isposinf(nats))
        if self._lost is not None:
            np.add.at(self._losses, documents, self._lost[places].astype(np.float64))

    def scores(self) -> tuple[DocumentScore, ...]:
        """The documents with a scored token, in the order of the corpus."""
        return tuple(DocumentScore(index, float(self._nats[index]), int(self._tokens[index]), int(self._bytes[index]),
                                   int(self._impossible[index]), float(self._losses[index]))
                     for index in np.flatnonzero(self._tokens).tolist())


def mean_perplexity(documents: Sequence[DocumentScore]) -> float:
    """The arithmetic mean of the documents' perplexities, infinite if one of them is."""
    return math.fsum(document.perplexity for document in documents) / len(documents)


def texts_of(stream: TokenStream, tokenizer: Tokenizer) -> list[str] | None:
    """The text of each document, decoded from its tokens.

    Args:
        tokenizer: that has encoded it.

    Returns:
        None if the tokens do not give back a text of as many bytes as they represent, or if only some are scored.
    """
    if stream.flags is not None:
        return None
    tokens, sizes = np.asarray(stream.tokens), np.asarray(stream.byte_lengths).astype(np.int64)
    starts = np.flatnonzero(np.asarray(stream.begins)).tolist()
    starts = starts if starts[:1] == [0] else [0, *starts]
    if stream.begins_scored and starts[-1] == len(tokens) - 1:
        del starts[-1]  # the last token ends the last document and begins none
    texts = []
    for first, last in zip(starts, [*starts[1:], len(tokens)], strict=True):
        told = sizes[first:last] > 0  # A special token represents no text
        text = tokenizer.decode(tokens[first:last][told].tolist())
        if len(text.encode()) != int(sizes[first:last].sum()):
            return None
        texts.append(text)
    return texts


def words_in(texts: Sequence[str]) -> int:
    """The words of texts, separated by white space."""
    return sum(len(text.split()) for text in texts)
