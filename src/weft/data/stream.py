"""A corpus as one row of tokens, with document starts and flags of tokens.

The sources of a stream of tokens into which several texts were joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float32, UInt, UInt8

from weft.core.errors import DataError
from weft.data.array import JoinedArray
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.encoding import encode_documents
from weft.data.layout import RowPart, layout_of
from weft.tokenizers import Tokenizer

WhenCapped: TypeAlias = Literal["share", "error"]


@dataclass(frozen=True)
class JoinedSource:
    """One source of a mixture.

    Attributes:
        first: place of its first token in the stream.
        last: the place after its last token.
        weight: its share of the tokens that are read, in any unit.
        max_epochs: how often it is read at most; None: as often as its weight asks.
    """

    name: str
    first: int
    last: int
    weight: float
    max_epochs: float | None = None


@dataclass(frozen=True)
class Sources:
    """The sources of a stream, one after another.

    Attributes:
        each: in the order of the configuration.
        when_capped: what happens once a source has been read ``max_epochs`` times: its weight passes to the others
            (``share``), or a run in which that would happen is refused before its first step (``error``).
    """

    each: tuple[JoinedSource, ...]
    when_capped: WhenCapped = "share"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(source.name for source in self.each)

    def weights(self) -> tuple[float, ...]:
        """Weights that add up to one."""
        whole = sum(source.weight for source in self.each)
        return tuple(source.weight / whole for source in self.each)


SCORED = 1
"""The bit of a token's flags for scored tokens, which count where they are predicted. The other bits are unused."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """All tokens of a corpus in one row of N, in memory or in files, of which only what is indexed is read.

    Attributes:
        tokens: ids, in the smallest unsigned type that holds the vocabulary.
        begins: whether a document begins at each token.
        byte_lengths: UTF-8 bytes of the source text that each token represents; 0 for special tokens.
        begins_scored: whether a token that begins a document may be predicted from the token before it, which belongs
            to another document. It may if the same token closes a document and opens the next.
        corpus: name of the corpus.
        repeated: of a held-out text: how many of its documents are also in the training text; None: unknown.
        flags: of each token, see ``SCORED``; None: every token is scored. A token that is not is read like the others,
            and adds neither to a loss nor to the tokens and bytes by which a loss is divided.
        sources: of a mixture: which tokens are of which source; None: it is one text.
        lost: nats that each token adds to the bits per byte for text that it does not tell, see `weft.tokenizers.lost`;
            NaN: unknown; None: the tokenizer keeps every text.
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
    flags: UInt8[np.ndarray, " N"] | JoinedArray | None = None
    sources: Sources | None = None
    lost: Float32[np.ndarray, " N"] | JoinedArray | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def scored(self, places: Any, begins: Bool[np.ndarray, "*shape"] | None = None) -> Bool[np.ndarray, "*shape"]:
        """Whether the tokens at these places (an array or a slice) count where they are predicted: their flags must say
        so, and they must not begin a document unless ``begins_scored``.

        Args:
            places: of the tokens.
            begins: whether a document begins at each of them, where that has been read already.
        """
        found: np.ndarray = np.logical_not(self.begins[places] if begins is None else begins) | self.begins_scored
        return found if self.flags is None else found & self.flagged(places)

    def flagged(self, places: Any) -> Bool[np.ndarray, "*shape"]:
        """Whether the tokens at these places are flagged as scored."""
        if self.flags is None:
            return np.ones(self.begins[places].shape, dtype=np.bool_)
        found: np.ndarray = self.flags[places] & SCORED != 0
        return found

    def lost_at(self, places: Any) -> float:
        """Nats for text that the tokens at these places do not tell; NaN if unknown."""
        return 0.0 if self.lost is None else float(self.lost[places].sum(dtype=np.float64))

    def require(self, needed: int, purpose: str, remedy: str) -> None:
        """Check that there are enough tokens for a purpose. Raises `DataError`: there are fewer than ``needed``."""
        if len(self) < needed:
            raise DataError(f"{len(self)} tokens are too few: {purpose} needs {needed}.", where=self.corpus,
                            remedy=remedy)


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, *, repeated: Repeated | None = None) -> TokenStream:
    """Encode every document and arrange them in one row, see `Layout`.

    Raises:
        DataError: the corpus gives no token, or none that is scored.
        TokenizerError: the tokenizer cannot express a text; ``where`` names the document.
    """
    layout = layout_of(tokenizer)
    rows = [row.narrow(tokenizer.vocab_size) for row in layout.rows(encode_documents(corpus.documents, tokenizer))]
    require_tokens(sum(len(row.ids) for row in rows), sum(int(row.scored.sum()) for row in rows), corpus)
    whole = RowPart.together(rows)
    return TokenStream(
        tokens=whole.ids, begins=whole.begins, byte_lengths=whole.byte_lengths, begins_scored=layout.begins_scored,
        vocab_size=tokenizer.vocab_size, corpus=corpus.name, corpus_sha256=corpus.sha256,
        tokenizer_sha256=tokenizer.fingerprint(), repeated=repeated, flags=flags_of(whole.scored), lost=whole.lost)


def flags_of(scored: Bool[np.ndarray, " n"]) -> UInt8[np.ndarray, " n"] | None:
    """The flags of tokens, some of which are scored; None if all are."""
    return None if scored.all() else scored.astype(np.uint8) * SCORED


def require_tokens(tokens: int, scored: int, corpus: Corpus) -> None:
    """Check that a corpus gives tokens, and some that are scored. Raises `DataError`: it does not."""
    if not tokens or not len(corpus.documents):
        raise DataError("the corpus gives no token.", where=corpus.name, remedy="Give a corpus that has text.")
    if not scored:
        raise DataError("no token of the corpus is scored: all of its text is prompt.", where=corpus.name,
                        remedy="Give records that have text besides the prompt.")
