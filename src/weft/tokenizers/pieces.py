"""Vocabularies in which every id stands for a fixed run of bytes: text and byte lengths are table look-ups."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.streaming import StreamDecoder

Ids: TypeAlias = NDArray[np.int32]
IdsLike: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]


def check_ids(ids: IdsLike, vocab_size: int) -> NDArray[np.int64]:
    """Return ``ids`` as an array. Raises `TokenizerError`: an id below 0 or not below ``vocab_size``."""
    array = np.asarray(ids, dtype=np.int64).reshape(-1)
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        place = int(outside[0])
        raise TokenizerError(f"id {array[place]} at position {place} is outside the vocabulary of {vocab_size} ids.",
                             where="ids", remedy="Decode with the tokenizer that the model was trained with.")
    return array


class PieceTable:
    """The bytes of every id; at the beginning of a text some ids stand for fewer bytes.

    Vocabularies that put a space before the first word remove it again when they decode: an id that is ``" the"``
    elsewhere is ``"the"`` there. The beginning ends after the first id that gives bytes or that lost some.

    Args:
        pieces: bytes by id; empty for special tokens and unused ids.
        specials: the spelling of special tokens, for when they are shown.
        opening: bytes at the beginning, for the ids that stand for other bytes there.
        patient: whether the beginning continues until an id gives bytes, even if ids before it have lost some.
    """

    def __init__(self, pieces: Sequence[bytes], specials: Mapping[int, bytes], *,
                 opening: Mapping[int, bytes] | None = None, patient: bool = False) -> None:
        self._pieces = tuple(pieces)
        self._shown = tuple([specials.get(place, piece) for place, piece in enumerate(pieces)]) if specials else None
        self._opening, self._patient = dict(opening or {}), patient
        self._lengths = np.array([len(piece) for piece in pieces], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._pieces)

    def contents(self) -> tuple[bytes, ...]:
        """The bytes of every id, by id."""
        return self._pieces

    def decode(self, ids: IdsLike, *, specials: bool) -> str:
        """The text of ``ids``. Raises `TokenizerError`: an id outside the vocabulary."""
        places: list[int] = check_ids(ids, len(self)).tolist()
        return self._join(places, specials=specials).decode("utf-8", errors="replace")

    def lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        """The bytes of each id in the text that begins with the first of ``ids``. Raises `TokenizerError`: an id
        outside the vocabulary."""
        array = check_ids(ids, len(self))
        found = self._lengths[array]
        for place, piece in enumerate(self._begin(array.tolist() if self._opening else (), self._pieces)):
            found[place] = len(piece)
        return found

    def measure(self, ids: Ids, content: bytes) -> NDArray[np.int32] | None:
        """The bytes of ``content`` that each id stands for, or None where the ids do not decode to ``content``."""
        return self.lengths(ids) if self._join(ids.tolist(), specials=False) == content else None

    def stream(self, *, specials: bool) -> StreamDecoder:
        """A decoder for ids that arrive one at a time."""
        return _PieceStream(self, specials=specials)

    def piece(self, token: int, *, specials: bool, begins: bool) -> tuple[bytes, bool]:
        """The bytes of one id, and whether the text still begins after it."""
        check_ids([token], len(self))
        ordinary = self._choose(specials)[token]
        if not begins or not self._opening:
            return ordinary, False
        piece = self._opening.get(token, ordinary)
        return piece, not piece and (self._patient or token not in self._opening)

    def _choose(self, specials: bool) -> tuple[bytes, ...]:
        return self._shown if specials and self._shown is not None else self._pieces

    def _join(self, ids: Sequence[int], *, specials: bool) -> bytes:
        pieces = self._choose(specials)
        head = self._begin(ids, pieces) if self._opening else []
        return b"".join(head) + b"".join([pieces[token] for token in ids[len(head) :]])

    def _begin(self, ids: Iterable[int], pieces: Sequence[bytes]) -> list[bytes]:
        head = []
        for token in ids:
            head.append(self._opening.get(token, pieces[token]))
            if head[-1] or (token in self._opening and not self._patient):
                break
        return head


class _PieceStream(StreamDecoder):
    def __init__(self, table: PieceTable, *, specials: bool) -> None:
        self._table, self._specials, self._begins = table, specials, True
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        piece, self._begins = self._table.piece(token, specials=self._specials, begins=self._begins)
        return self._utf8.decode(piece)

    def finish(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._begins = True
        return rest
