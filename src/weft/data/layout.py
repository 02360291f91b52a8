"""How documents are arranged in one row of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, Integer

from weft.tokenizers import Tokenizer

NO_IDS = np.array([], dtype=np.int32)


@final
class EncodedPart(NamedTuple):
    """The tokens of a document or of a stretch of one.

    Attributes:
        ids: the tokens.
        byte_lengths: bytes of text that each token represents.
        opens: whether the document begins with it.
        closes: whether the document ends with it.
        scored: whether its tokens count in a loss.
        end_scored: whether the token that closes the document does.
    """

    ids: np.ndarray
    byte_lengths: np.ndarray
    opens: bool = True
    closes: bool = True
    scored: bool = True
    end_scored: bool = True


@final
class Row(NamedTuple):
    """A piece of a row of tokens.

    Attributes:
        ids: the tokens.
        byte_lengths: bytes of text that each token represents; 0 for those that open or close a document.
        begins: whether a document begins at each token.
        scored: whether each token counts in a loss.
    """

    ids: Integer[np.ndarray, " n"]
    byte_lengths: Integer[np.ndarray, " n"]
    begins: Bool[np.ndarray, " n"]
    scored: Bool[np.ndarray, " n"]

    def cut(self, first: int, last: int) -> Row:
        """The tokens from ``first`` to before ``last``."""
        return Row(*(column[first:last] for column in self))

    def narrow(self, vocab_size: int) -> Row:
        """The same in the smallest dtypes that hold it."""
        return self._replace(ids=self.ids.astype(np.min_scalar_type(vocab_size - 1)),
                             byte_lengths=self.byte_lengths.astype(
                                 np.min_scalar_type(self.byte_lengths.max(initial=0))))


@final
@dataclass(frozen=True)
class Layout:
    """How documents are arranged in a row.

    With E the token that both closes and opens documents (most tokenizers have one), the row is ``E d1 E d2 E``: each
    document begins at the E before it, and every token, the end of each document included, is predicted once and from
    its own document alone. The usual layout ``d1 E d2 E`` predicts a document's first token from the one before it, or
    not at all. With distinct tokens B and Z the row is ``B d1 Z B d2 Z`` and no B is scored; with neither it is
    ``d1 d2`` and no first token is scored.

    Attributes:
        opening: the token before each document; None: there is none.
        closing: the token after each document; None: there is none.
        final: the token at the end of the row; None: there is none.
    """

    opening: int | None
    closing: int | None
    final: int | None

    @property
    def begins_scored(self) -> bool:
        """See `weft.data.stream.TokenStream`."""
        return self.final is not None

    def rows(self, batches: Iterable[list[EncodedPart]]) -> Iterator[Row]:
        """Arrange documents in a row: each between its opening and closing tokens, and the final token at the end. One
        piece of the row is yielded for each batch.

        A text may contain its own end token (``words`` with ``end_of_line``), which then closes its document and is not
        repeated. Where the same token opens the next document, it keeps its bytes.
        """
        row = _Laying(self)
        for batch in batches:
            if row.tokens:
                yield row.take()
            for part in batch:
                row.add(part)
        row.end()
        yield row.take()


@final
class _Laying:
    """A row under construction, with what the next opening token takes over from the document before it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._opening, self._closing, self._final = map(_optional, (layout.opening, layout.closing, layout.final))
        self._ids: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._scored: list[bool] = []
        self._begins: list[int] = []
        self._carried, self._begun, self._end_scored = 0, False, True
        self.tokens = 0

    def add(self, part: EncodedPart) -> None:
        """Append a document, or a stretch of one."""
        if part.opens:
            self._open()
        ids, lengths, after = part.ids, part.byte_lengths, NO_IDS
        if part.closes:
            self._end_scored = part.end_scored
            ids, lengths, after = self._closed(ids, lengths)
        self._append(ids, lengths, part.scored)
        if len(after):
            self._append(after, np.zeros_like(after), part.end_scored)

    def end(self) -> None:
        """Append the final token."""
        if self._layout.final is not None:
            self._open(self._final)

    def take(self) -> Row:
        """The tokens that were appended since the last call."""
        sizes = [len(ids) for ids in self._ids]
        begins = np.zeros(self.tokens, dtype=np.bool_)
        begins[self._begins] = True
        row = Row(np.concatenate([NO_IDS, *self._ids]), np.concatenate([NO_IDS, *self._lengths]), begins,
                  np.repeat(np.array(self._scored, dtype=np.bool_), sizes))
        self._ids, self._lengths, self._scored, self._begins, self.tokens = [], [], [], [], 0
        return row

    def _open(self, opening: np.ndarray | None = None) -> None:
        """Append the token before a document. If it also closes the document before, it is scored as that one's end."""
        opening = self._opening if opening is None else opening
        self._begun = False
        self._append(opening, np.full(len(opening), self._carried, dtype=np.int32), self._end_scored)
        self._carried = 0

    def _append(self, ids: np.ndarray, lengths: np.ndarray, scored: bool) -> None:
        if not len(ids):
            return
        if not self._begun:
            self._begins.append(self.tokens)
            self._begun = True
        self._ids.append(ids)
        self._lengths.append(lengths)
        self._scored.append(scored)
        self.tokens += len(ids)

    def _closed(self, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Append the end of a document, without an end token in its text, and the closing token."""
        if len(ids) and ids[-1] == self._layout.closing:
            return ids, lengths, NO_IDS
        if len(ids) and ids[-1] == self._layout.final:
            self._carried = int(lengths[-1])
            return ids[:-1], lengths[:-1], NO_IDS
        return ids, lengths, self._closing


def layout_of(tokenizer: Tokenizer) -> Layout:
    """The layout that a tokenizer's special tokens allow."""
    opening = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    closing = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.bos_id
    if opening is not None and opening == closing:
        return Layout(opening, None, opening)
    return Layout(opening, closing, None)


def _optional(token: int | None) -> np.ndarray:
    return NO_IDS if token is None else np.array([token], dtype=np.int32)
