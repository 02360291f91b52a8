"""One document of a corpus, held as the bytes of its text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from weft.data.utf8 import decoded, parts_of
from weft.tokenizers.base import utf8

DIGEST_BYTES = 16


class Segment(NamedTuple):
    """A part of a document's text in UTF-8; ``scored``: whether its tokens count in a loss."""

    utf8: memoryview
    scored: bool

    def parts(self) -> Iterator[str]:
        """The text in parts, cut anywhere between characters."""
        return decoded(self.utf8)


class Document:
    """One text, such as a file. It is immutable.

    It stores UTF-8, which may be a view of a larger text or of a file, because a ``str`` takes up to four times as much
    memory.

    Attributes:
        name: unique in its corpus, such as a relative path.
        borders: ascending byte offsets at which scoring alternately stops and starts: with (0, 5) the first 5 bytes are
            read and not scored. Without borders all of it is scored.

    Args:
        name: see above.
        text: the text, or its UTF-8, which is not checked.
        borders: see above.

    Raises:
        TokenizerError: the text has half a surrogate pair, which UTF-8 cannot express.
    """

    __slots__ = ("_held", "borders", "name")

    def __init__(self, name: str, text: str | bytes | memoryview, borders: tuple[int, ...] = ()) -> None:
        self.name = name
        self._held = utf8(text) if isinstance(text, str) else text
        self.borders = borders

    @property
    def utf8(self) -> memoryview:
        """The text as it was read, never normalised."""
        return memoryview(self._held)

    @property
    def text(self) -> str:
        """The text, decoded on each access."""
        return str(self.utf8, "utf-8")

    @property
    def size_bytes(self) -> int:
        """UTF-8 bytes of the text."""
        return len(self._held)

    @property
    def end_scored(self) -> bool:
        """Whether the token that closes the document is scored: it is if the end of the text is."""
        return len(self.borders) % 2 == 0

    def parts(self) -> Iterator[str]:
        """The text in parts, cut anywhere between characters."""
        return decoded(self.utf8)

    def segments(self) -> list[Segment]:
        """Its text in order, cut at its borders; none is empty."""
        content, places = self.utf8, (0, *self.borders, len(self._held))
        return [Segment(content[first:last], turn % 2 == 0)
                for turn, (first, last) in enumerate(pairwise(places)) if last > first]

    def until(self, place: int) -> Document:
        """The same document, cut before byte ``place``."""
        return Document(self.name, self.utf8[:place], tuple(border for border in self.borders if border < place))

    def digest(self) -> bytes:
        """A hash of the text (BLAKE2b), by which documents of the same text are recognised."""
        found = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for _, part in parts_of(self.utf8):
            found.update(part)
        return found.digest()

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Document) and self.name == other.name and self.borders == other.borders
                and self.utf8 == other.utf8)

    def __hash__(self) -> int:
        return hash((self.name, self.digest()))

    def __repr__(self) -> str:
        return f"Document({self.name!r}, {self.size_bytes} bytes)"
