"""A corpus as one row of tokens, with the places where documents begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, UInt

from weft.core.errors import DataError, TokenizerError
from weft.data.corpus import Corpus
from weft.tokenizers import Encoded, Tokenizer


@final
@dataclass(frozen=True, eq=False)
class TokenStream:
    """All tokens of a corpus in one row of N.

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

    tokens: UInt[np.ndarray, " N"]
    begins: Bool[np.ndarray, " N"]
    byte_lengths: UInt[np.ndarray, " N"]
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


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer) -> TokenStream:
    """Encode every document and lay them out in one row.

    With E the token that both closes and opens documents (most tokenizers have one), the row is ``E d1 E d2 E``: each
    document begins at the E before it, and every token, the end of each document included, is predicted once and from
    its own document alone. The usual layout ``d1 E d2 E`` predicts a document's first token from the one before it, or
    not at all. With distinct tokens B and Z the row is ``B d1 Z B d2 Z`` and no B is scored; with neither it is
    ``d1 d2`` and no first token is scored.

    Raises:
        DataError: a corpus that gives no token.
        TokenizerError: text that the tokenizer cannot express; ``where`` names the document.
    """
    opening = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    closing = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.bos_id
    shared = opening is not None and opening == closing
    pieces, lengths, begins = [], [], []
    for encoded in _measured(corpus, tokenizer):
        ids, counts = _enclosed(encoded, opening, None if shared else closing)
        pieces.append(ids)
        lengths.append(counts)
        begins.append(np.arange(len(ids)) == 0)
    if not sum(map(len, pieces)):
        raise DataError("the corpus gives no token.", where=corpus.name, remedy="Give a corpus that has text.")
    if shared:
        pieces.append(np.array([closing], dtype=np.int32))
        lengths.append(np.zeros(1, dtype=np.int32))
        begins.append(np.ones(1, dtype=np.bool_))
    return TokenStream(
        tokens=_compact(np.concatenate(pieces), tokenizer.vocab_size - 1),
        begins=np.concatenate(begins),
        byte_lengths=_compact(np.concatenate(lengths), max(int(piece.max(initial=0)) for piece in lengths)),
        begins_scored=shared,
        vocab_size=tokenizer.vocab_size,
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
        tokenizer_sha256=tokenizer.fingerprint(),
    )


def _measured(corpus: Corpus, tokenizer: Tokenizer) -> list[Encoded]:
    try:
        return tokenizer.measure_many(corpus.texts())
    except TokenizerError:
        for document in corpus.documents:
            try:
                tokenizer.measure(document.text)
            except TokenizerError as error:
                raise TokenizerError(error.what, where=document.name, remedy=error.remedy) from None
        raise


def _enclosed(encoded: Encoded, opening: int | None, closing: int | None) -> tuple[np.ndarray, np.ndarray]:
    before = np.array([] if opening is None else [opening], dtype=np.int32)
    after = np.array([] if closing is None else [closing], dtype=np.int32)
    ids = np.concatenate([before, encoded.ids, after])
    return ids, np.concatenate([np.zeros_like(before), encoded.byte_lengths, np.zeros_like(after)])


def _compact(values: np.ndarray, largest: int) -> np.ndarray:
    return values.astype(np.min_scalar_type(largest))
