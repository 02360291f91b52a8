"""A corpus as one row of tokens, with the places where documents begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, UInt

from weft.core.errors import DataError, TokenizerError
from weft.data.array import JoinedArray
from weft.data.corpus import Corpus, Document
from weft.tokenizers import Encoded, Tokenizer

BATCH_CHARACTERS = 1 << 20
"""Text that is encoded at once: enough for all threads of the tokenizer, little enough to tell of progress and not to
hold what the library makes of a whole corpus."""


@final
@dataclass(frozen=True, eq=False)
class TokenStream:
    """All tokens of a corpus in one row of N, in memory or mapped from files.

    Attributes:
        tokens: ids, in the smallest unsigned type that holds the vocabulary.
        begins: where a document begins.
        byte_lengths: UTF-8 bytes of the source text that each token stands for; special tokens stand for none.
        begins_scored: whether a token that begins a document may be predicted from the token before it, which belongs
            to another document. It may when one and the same token closes a document and opens the next.
        vocab_size: of the tokenizer.
        corpus: name of the corpus.
        corpus_sha256: hash of the corpus.
        tokenizer_sha256: fingerprint of the tokenizer.
    """

    tokens: UInt[np.ndarray, " N"] | JoinedArray
    begins: Bool[np.ndarray, " N"] | JoinedArray
    byte_lengths: UInt[np.ndarray, " N"] | JoinedArray
    begins_scored: bool
    vocab_size: int
    corpus: str
    corpus_sha256: str
    tokenizer_sha256: str

    def __len__(self) -> int:
        return len(self.tokens)

    def require(self, needed: int, purpose: str, remedy: str) -> None:
        """Refuse a purpose that needs more tokens than there are.

        Raises:
            DataError: fewer than ``needed`` tokens.
        """
        if len(self) < needed:
            raise DataError(
                f"{len(self)} tokens are too few: {purpose} needs {needed}.", where=self.corpus, remedy=remedy
            )


@final
class Enclosed(NamedTuple):
    """A document's tokens with what opens and closes it, and the bytes that each stands for."""

    ids: np.ndarray
    byte_lengths: np.ndarray


@final
@dataclass(frozen=True)
class Layout:
    """How documents lie in a row.

    With E the token that both closes and opens documents (most tokenizers have one), the row is ``E d1 E d2 E``: each
    document begins at the E before it, and every token, the end of each document included, is predicted once and from
    its own document alone. The usual layout ``d1 E d2 E`` predicts a document's first token from the one before it, or
    not at all. With distinct tokens B and Z the row is ``B d1 Z B d2 Z`` and no B is scored; with neither it is
    ``d1 d2`` and no first token is scored.

    Attributes:
        opening: stands before each document.
        closing: stands after each document.
        final: stands once, at the end of the row.
    """

    opening: int | None
    closing: int | None
    final: int | None

    @property
    def begins_scored(self) -> bool:
        """See `TokenStream`."""
        return self.final is not None

    def rows(self, documents: Iterable[Encoded]) -> Iterator[Enclosed]:
        """Each document's tokens between its opening and its closing, which stand for no bytes, and what ends the row.

        A text may spell its own end (``words`` with ``end_of_line``): it then closes its document, and is not doubled.
        Where that token opens the next document too, its bytes go with it.
        """
        before, after, carried = _optional(self.opening), _optional(self.closing), 0
        for encoded in documents:
            ids, lengths = encoded.ids, encoded.byte_lengths
            opening = np.full(len(before), carried, dtype=np.int32)
            carried, closing = 0, after
            if len(ids) and ids[-1] == self.closing:
                closing = after[:0]
            elif len(ids) and ids[-1] == self.final:
                carried, ids, lengths = int(lengths[-1]), ids[:-1], lengths[:-1]
            yield Enclosed(np.concatenate([before, ids, closing]),
                           np.concatenate([opening, lengths, np.zeros_like(closing)]))
        if self.final is not None:
            yield Enclosed(_optional(self.final), np.array([carried], np.int32))


def layout_of(tokenizer: Tokenizer) -> Layout:
    """The layout that a tokenizer's special tokens allow."""
    opening = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    closing = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.bos_id
    if opening is not None and opening == closing:
        return Layout(opening, None, opening)
    return Layout(opening, closing, None)


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer) -> TokenStream:
    """Encode every document and lay them out in one row, see `Layout`.

    Raises:
        DataError: a corpus that gives no token.
        TokenizerError: text that the tokenizer cannot express; ``where`` names the document.
    """
    layout = layout_of(tokenizer)
    encoded = (each for _, each in encode_documents(corpus.documents, tokenizer))
    pieces = list(layout.rows(encoded))
    require_tokens(sum(len(piece.ids) for piece in pieces) if corpus.documents else 0, corpus)
    begins = [np.arange(len(piece.ids)) == 0 for piece in pieces]
    lengths = np.concatenate([piece.byte_lengths for piece in pieces])
    return TokenStream(
        tokens=np.concatenate([piece.ids for piece in pieces]).astype(np.min_scalar_type(tokenizer.vocab_size - 1)),
        begins=np.concatenate(begins),
        byte_lengths=lengths.astype(np.min_scalar_type(int(lengths.max()))),
        begins_scored=layout.begins_scored,
        vocab_size=tokenizer.vocab_size,
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
        tokenizer_sha256=tokenizer.fingerprint(),
    )


def encode_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, on_batch: Callable[[int], None] | None = None
) -> Iterator[tuple[Document, Encoded]]:
    """Each document with its tokens, in order. Documents are encoded many at a time, so that a tokenizer that has
    threads uses them.

    Args:
        documents: the documents.
        tokenizer: what encodes them.
        on_batch: called with the number of documents that have been encoded, after each batch.

    Raises:
        TokenizerError: text that the tokenizer cannot express; ``where`` names the document.
    """
    done = 0
    for batch in _batches(documents):
        encoded = _measured(batch, tokenizer)
        done += len(batch)
        if on_batch is not None:
            on_batch(done)
        yield from zip(batch, encoded, strict=True)


def require_tokens(count: int, corpus: Corpus) -> None:
    """Refuse a corpus that gives no token.

    Raises:
        DataError: ``count`` is 0.
    """
    if not count:
        raise DataError("the corpus gives no token.", where=corpus.name, remedy="Give a corpus that has text.")


def _batches(documents: Sequence[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _measured(batch: list[Document], tokenizer: Tokenizer) -> list[Encoded]:
    try:
        return tokenizer.measure_many([document.text for document in batch])
    except TokenizerError:
        for document in batch:
            try:
                tokenizer.measure(document.text)
            except TokenizerError as error:
                raise TokenizerError(error.what, where=document.name, remedy=error.remedy) from None
        raise


def _optional(token: int | None) -> np.ndarray:
    return np.array([] if token is None else [token], dtype=np.int32)
