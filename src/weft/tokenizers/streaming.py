"""Text from ids that arrive one at a time, without ever showing half a character."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import final

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StreamDecoder(ABC):
    """Incremental detokenisation: the pieces joined equal ``decode`` of all ids.

    A piece is emitted once and never taken back; the bytes of an unfinished character wait for the ids that finish it,
    or for ``finish``.
    """

    @abstractmethod
    def push(self, token: int) -> str:
        """The text that ``token`` completes; often empty."""

    @abstractmethod
    def finish(self) -> str:
        """The text still waiting, with U+FFFD for half a character; the decoder is then as new."""

    def follow(self, ids: Iterable[int]) -> None:
        """Take ids whose text is known already (a prompt's): what is pushed next continues it, so a word that comes
        after others keeps the space before it."""
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
