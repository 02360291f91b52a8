"""Text from ids that arrive one at a time, without parts of characters.

The bytes of a text that each token stands for, computed from where the tokens end.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StreamDecoder(ABC):
    """Incremental detokenisation: the pieces joined equal ``decode`` of all ids.

    A piece is emitted once and never revised; the bytes of an unfinished character are held back until the ids that
    complete it, or until ``finish``.
    """

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that ``token`` completes; often empty."""

    @abstractmethod
    def finish(self) -> str:
        """The text held back, with U+FFFD for an unfinished character; the decoder is then reset."""

    def follow(self, ids: Iterable[int]) -> None:
        """Push ids whose text is not needed (a prompt's): ids pushed later continue it, so a word after others keeps
        the space before it."""
        for token in ids:
            self.push(token)


class TextStream(StreamDecoder):
    """Stream for tokenizers where the text of an id depends on the ids before it (word pieces).

    Decodes a short window twice, without and with the new ids, and emits the difference. The window starts at a place
    where a piece was emitted, so the cost per id does not grow with the text.

    Args:
        decode: the whole decoding of a list of ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._settled: list[int] = []
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        self._waiting.append(token)
        piece = self._fresh_text()
        if not piece or piece.endswith(REPLACEMENT):
            return ""
        self._settled, self._waiting = self._waiting, []
        return piece

    def finish(self) -> str:
        piece = self._fresh_text()
        self._settled, self._waiting = [], []
        return piece

    def _fresh_text(self) -> str:
        before = self._decode(self._settled)
        return self._decode([*self._settled, *self._waiting])[len(before) :]


WHITE_SPACE = re.compile(rb"[ \t\n\r\x0b\x0c]*")


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of ``text``."""
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def utf8_widths(points: NDArray[np.uint32]) -> NDArray[np.int32]:
    """The number of UTF-8 bytes of each character."""
    return (1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)).astype(np.int32)


def byte_spans(text: str, ends: Int[np.ndarray, " T"] | Sequence[int]) -> NDArray[np.int32]:
    """Bytes of ``text`` per token, given the character before which each token ends.

    Every byte is counted once, so the lengths sum to the bytes of the text: characters that no token covers count with
    the next token (at the end, with the last), characters that several tokens cover with the first of these.

    Args:
        ends: one place per token, in order, in characters.
    """
    if not len(ends):
        return np.zeros(0, dtype=np.int32)
    places = np.asarray(ends, dtype=np.int64)
    if not text.isascii():
        before = np.concatenate([[0], np.cumsum(utf8_widths(code_points(text)))])
        places = before[places]
    covered = np.maximum.accumulate(places)
    covered[-1] = len(text.encode())
    return np.diff(covered, prepend=0).astype(np.int32)


def parted(piece: bytes) -> tuple[bytes, bytes]:
    """The white space with which bytes begin, and the rest."""
    found = WHITE_SPACE.match(piece)
    assert found is not None, "the expression matches no bytes too"
    return found[0], piece[found.end():]
