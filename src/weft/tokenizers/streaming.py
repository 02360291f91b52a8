"""Text from ids that arrive one at a time, without parts of characters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import final

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


@final
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
