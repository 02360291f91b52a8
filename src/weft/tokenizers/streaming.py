"""Text from ids that arrive one at a time, without ever showing half a character."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

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


class ByteStream(StreamDecoder):
    """Stream for tokenizers whose every id is a fixed run of bytes.

    Args:
        token_bytes: the bytes of one id.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._token_bytes(token))

    def finish(self) -> str:
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class TextStream(StreamDecoder):
    """Stream for tokenizers where the text of an id depends on the ids before it (word pieces, leading spaces).

    Decodes a short window twice, without and with the new ids, and emits the difference. The window starts at a place
    where a piece was emitted, so the cost per id does not grow with the text. One difference from ``decode`` remains,
    where ids are bytes that end in half a character: the library then replaces the whole run of bytes, while the stream
    has already emitted the characters that were whole.

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
