"""How documents are arranged in one row of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Integer

from weft.tokenizers import Tokenizer

NO_IDS = np.array([], dtype=np.int32)


class EncodedPart(NamedTuple):
    """The tokens of a document or of a stretch of one.

    Attributes:
        ids: the tokens.
        byte_lengths: bytes of text that each token represents.
        opens: whether the document begins with it.
        closes: whether the document ends with it.
        scored: whether its tokens count in a loss.
        end_scored: whether the token that closes the document does.
        lost: nats that each token adds for text that it does not tell (`weft.tokenizers.lost`); None: the tokenizer
            keeps every text.
        untold_bytes: and ``untold_nats``: of text that has no tokens, such as white space between words; they count
            with the token that closes the document.
    """

    ids: np.ndarray
    byte_lengths: np.ndarray
    opens: bool = True
    closes: bool = True
    scored: bool = True
    end_scored: bool = True
    lost: np.ndarray | None = None
    untold_bytes: int = 0
    untold_nats: float = 0.0


class RowPart(NamedTuple):
    """A piece of a row of tokens.

    Attributes:
        ids: the tokens.
        byte_lengths: bytes of text that each token represents; 0 for those that open or close a document.
        begins: whether a document begins at each token.
        scored: whether each token counts in a loss.
        lost: nats that each token adds for text that it does not tell; None: the tokenizer keeps every text.
    """

    ids: Integer[np.ndarray, " n"]
    byte_lengths: Integer[np.ndarray, " n"]
    begins: Bool[np.ndarray, " n"]
    scored: Bool[np.ndarray, " n"]
    lost: Float32[np.ndarray, " n"] | None = None

    def cut(self, first: int, last: int) -> RowPart:
        """The tokens from ``first`` to before ``last``."""
        here = slice(first, last)
        return RowPart(self.ids[here], self.byte_lengths[here], self.begins[here], self.scored[here],
                       None if self.lost is None else self.lost[here])

    @staticmethod
    def together(rows: Sequence[RowPart]) -> RowPart:
        """One row after another, in the dtypes that hold all of them."""
        ids, byte_lengths, begins, scored = (np.concatenate(column) for column in zip(
            *((row.ids, row.byte_lengths, row.begins, row.scored) for row in rows), strict=True))
        lost = [row.lost for row in rows if row.lost is not None]
        return RowPart(ids, byte_lengths, begins, scored, np.concatenate(lost) if lost else None)

    def narrow(self, vocab_size: int) -> RowPart:
        """The same in the smallest dtypes that hold it."""
        return self._replace(ids=self.ids.astype(np.min_scalar_type(vocab_size - 1)),
                             byte_lengths=self.byte_lengths.astype(
                                 np.min_scalar_type(self.byte_lengths.max(initial=0))))


@dataclass(frozen=True)
class RowLayout:
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
        pays: whether rows have the nats of text that the tokenizer loses.
    """

    opening: int | None
    closing: int | None
    final: int | None
    pays: bool = False

    @property
    def begins_scored(self) -> bool:
        """See `weft.data.stream.TokenStream`."""
        return self.final is not None

    def rows(self, batches: Iterable[list[EncodedPart]]) -> Iterator[RowPart]:
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


class _Laying:
    """A row under construction, with what the next opening token takes over from the document before it."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self._opening, self._closing, self._final = (
            NO_IDS if token is None else np.array([token], dtype=np.int32)
            for token in (layout.opening, layout.closing, layout.final))
        self._ids: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._lost: list[np.ndarray] = []
        self._scored: list[bool] = []
        self._begins: list[int] = []
        self._carried, self._owed, self._begun, self._end_scored = 0, 0.0, False, True
        self.tokens = 0

    def add(self, part: EncodedPart) -> None:
        """Append a document, or a stretch of one."""
        if part.opens:
            self._open()
        self._carried, self._owed = self._carried + part.untold_bytes, self._owed + part.untold_nats
        lost = np.zeros(len(part.ids), dtype=np.float32) if part.lost is None else part.lost
        whole, closes = len(part.ids), part.closes and len(part.ids) > 0
        if closes and part.ids[-1] == self._layout.final:
            whole, self._carried = whole - 1, self._carried + int(part.byte_lengths[-1])
            self._owed += float(lost[-1])
        self._append(part.ids[:whole], part.byte_lengths[:whole], lost[:whole], part.scored)
        if part.closes:
            self._end_scored = part.end_scored
            if not (closes and part.ids[-1] == self._layout.closing):
                self._end(self._closing, part.end_scored)

    def end(self) -> None:
        """Append the final token."""
        self._open(self._final)

    def take(self) -> RowPart:
        """The tokens that were appended since the last call."""
        sizes = [len(ids) for ids in self._ids]
        lost = np.concatenate([np.zeros(0, dtype=np.float32), *self._lost]) if self._layout.pays else None
        begins = np.zeros(self.tokens, dtype=np.bool_)
        begins[self._begins] = True
        row = RowPart(np.concatenate([NO_IDS, *self._ids]), np.concatenate([NO_IDS, *self._lengths]), begins,
                      np.repeat(np.array(self._scored, dtype=np.bool_), sizes), lost)
        self._ids, self._lengths, self._lost, self._scored, self._begins, self.tokens = [], [], [], [], [], 0
        return row

    def _open(self, opening: np.ndarray | None = None) -> None:
        """Append the token before a document. If it also closes the document before, it is scored as that one's end."""
        self._begun = False
        self._end(self._opening if opening is None else opening, self._end_scored)
        self._carried, self._owed = 0, 0.0

    def _end(self, ids: np.ndarray, scored: bool) -> None:
        """Append a token between documents, or none, with the bytes and nats that are left of the document before."""
        if len(ids):
            self._append(ids, np.array([self._carried], dtype=np.int32), np.array([self._owed], dtype=np.float32),
                         scored)
            self._carried, self._owed = 0, 0.0

    def _append(self, ids: np.ndarray, lengths: np.ndarray, lost: np.ndarray, scored: bool) -> None:
        if not len(ids):
            return
        if not self._begun:
            self._begins.append(self.tokens)
            self._begun = True
        self._ids.append(ids)
        self._lengths.append(lengths)
        self._lost.append(lost)
        self._scored.append(scored)
        self.tokens += len(ids)


def layout_of(tokenizer: Tokenizer) -> RowLayout:
    """The layout that a tokenizer's special tokens allow."""
    opening = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    closing = tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.bos_id
    pays = not tokenizer.keeps_text
    if opening is not None and opening == closing:
        return RowLayout(opening, None, opening, pays)
    return RowLayout(opening, closing, None, pays)
