"""A corpus as one row of tokens, with the places where documents begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, UInt

from weft.core.errors import DataError, TokenizerError
from weft.data.array import JoinedArray
from weft.data.corpus import Corpus
from weft.data.document import Document
from weft.data.duplicates import Repeated
from weft.tokenizers import Encoded, Tokenizer
from weft.tokenizers.seams import Stretch, measured, stretches

BATCH_CHARACTERS = 1 << 20
"""Text that is encoded at once: enough for all threads of the tokenizer, little enough to tell of progress and not to
hold what the library makes of a whole corpus."""

NO_IDS = np.array([], dtype=np.int32)


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
        repeated: of a held-out text: how many of its documents stand in the training text too; None: not known.
    """

    tokens: UInt[np.ndarray, " N"] | JoinedArray
    begins: Bool[np.ndarray, " N"] | JoinedArray
    byte_lengths: UInt[np.ndarray, " N"] | JoinedArray
    begins_scored: bool
    vocab_size: int
    corpus: str
    corpus_sha256: str
    tokenizer_sha256: str
    repeated: Repeated | None = None

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
class EncodedPart(NamedTuple):
    """The tokens of a document, or of a stretch of a long one, and the bytes that each stands for.

    Attributes:
        ids: the tokens.
        byte_lengths: bytes of text that each stands for.
        opens: the document begins with it.
        closes: the document ends with it.
    """

    ids: np.ndarray
    byte_lengths: np.ndarray
    opens: bool = True
    closes: bool = True


@final
class Enclosed(NamedTuple):
    """The tokens of a document or of a stretch of one, with what opens and closes it, and the bytes that each stands
    for; ``begins``: its first token begins a document."""

    ids: np.ndarray
    byte_lengths: np.ndarray
    begins: bool = True


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

    def rows(self, parts: Iterable[EncodedPart]) -> Iterator[Enclosed]:
        """Each document's tokens between its opening and its closing, which stand for no bytes, and what ends the row.

        A text may spell its own end (``words`` with ``end_of_line``): it then closes its document, and is not doubled.
        Where that token opens the next document too, its bytes go with it.
        """
        carried = 0
        for part in parts:
            before = _optional(self.opening) if part.opens else NO_IDS
            opening = np.full(len(before), carried, dtype=np.int32)
            carried = 0 if part.opens else carried
            ids, lengths, after = part.ids, part.byte_lengths, NO_IDS
            if part.closes:
                ids, lengths, after, carried = self._closed(ids, lengths)
            yield Enclosed(np.concatenate([before, ids, after]),
                           np.concatenate([opening, lengths, np.zeros_like(after)]), part.opens)
        if self.final is not None:
            yield Enclosed(_optional(self.final), np.array([carried], np.int32))

    def _closed(self, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """The end of a document without the end that its text spells, what closes it, and the bytes that the next
        opening takes along."""
        if len(ids) and ids[-1] == self.closing:
            return ids, lengths, NO_IDS, 0
        if len(ids) and ids[-1] == self.final:
            return ids[:-1], lengths[:-1], NO_IDS, int(lengths[-1])
        return ids, lengths, _optional(self.closing), 0


def layout_of(tokenizer: Tokenizer) -> Layout:
    """The layout that a tokenizer's special tokens allow."""
    opening = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    closing = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.bos_id
    if opening is not None and opening == closing:
        return Layout(opening, None, opening)
    return Layout(opening, closing, None)


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, *, repeated: Repeated | None = None) -> TokenStream:
    """Encode every document and lay them out in one row, see `Layout`.

    Raises:
        DataError: a corpus that gives no token.
        TokenizerError: text that the tokenizer cannot express; ``where`` names the document.
    """
    layout = layout_of(tokenizer)
    pieces = [narrow(piece, tokenizer.vocab_size) for piece in layout.rows(encode_documents(corpus.documents,
                                                                                            tokenizer))]
    require_tokens(sum(len(piece.ids) for piece in pieces) if corpus.documents else 0, corpus)
    return TokenStream(
        tokens=np.concatenate([piece.ids for piece in pieces]), begins=begins_of(pieces),
        byte_lengths=np.concatenate([piece.byte_lengths for piece in pieces]), begins_scored=layout.begins_scored,
        vocab_size=tokenizer.vocab_size, corpus=corpus.name, corpus_sha256=corpus.sha256,
        tokenizer_sha256=tokenizer.fingerprint(), repeated=repeated)


def narrow(piece: Enclosed, vocab_size: int) -> Enclosed:
    """The same in the smallest types that hold it."""
    lengths = piece.byte_lengths
    return Enclosed(piece.ids.astype(np.min_scalar_type(vocab_size - 1)),
                    lengths.astype(np.min_scalar_type(lengths.max(initial=0))), piece.begins)


def begins_of(pieces: Sequence[Enclosed]) -> Bool[np.ndarray, " N"]:
    """Where documents begin in the row of these pieces."""
    begins = np.zeros(sum(len(piece.ids) for piece in pieces), dtype=np.bool_)
    place = 0
    for piece in pieces:
        begins[place:place + 1] |= piece.begins and len(piece.ids) > 0
        place += len(piece.ids)
    return begins


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, on_batch: Callable[[int], None] | None = None
) -> Iterator[EncodedPart]:
    """The tokens of each document, in order, those of a long one in stretches. Many are encoded at a time, so that a
    tokenizer that has threads uses them.

    Args:
        documents: the documents.
        tokenizer: what encodes them.
        on_batch: called with the bytes of text that have been encoded, after each batch.

    Raises:
        TokenizerError: text that the tokenizer cannot express; ``where`` names the document.
    """
    done = 0
    for batch in _batches(documents, tokenizer):
        encoded = _measured(batch, tokenizer)
        if on_batch is not None:
            done += sum(int(each.byte_lengths.sum(dtype=np.int64)) for each in encoded)
            on_batch(done)
        yield from (EncodedPart(each.ids, each.byte_lengths, place.opens, place.closes)
                    for each, place in zip(encoded, batch, strict=True))


def require_tokens(count: int, corpus: Corpus) -> None:
    """Refuse a corpus that gives no token.

    Raises:
        DataError: ``count`` is 0.
    """
    if not count:
        raise DataError("the corpus gives no token.", where=corpus.name, remedy="Give a corpus that has text.")


@final
class _Place(NamedTuple):
    """A stretch of a document, and where in it the stretch stands."""

    document: Document
    stretch: Stretch
    first: int
    opens: bool
    closes: bool


def _places(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[_Place]:
    for document in documents:
        found = stretches(tokenizer, document.parts())
        stretch, first, opens = next(found, Stretch("")), 0, True
        for following in found:
            yield _Place(document, stretch, first, opens, closes=False)
            first += len(stretch.text) + following.skipped
            stretch, opens = following, False
        yield _Place(document, stretch, first, opens, closes=True)


def _batches(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[list[_Place]]:
    batch: list[_Place] = []
    characters = 0
    for place in _places(documents, tokenizer):
        batch.append(place)
        characters += len(place.stretch.text)
        if characters >= BATCH_CHARACTERS:
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


def _optional(token: int | None) -> np.ndarray:
    return NO_IDS if token is None else np.array([token], dtype=np.int32)
