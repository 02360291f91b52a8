"""The bytes of a text that each token stands for, computed from where the tokens end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

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
        text: the source text.
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


@final
class Spelling(NamedTuple):
    """The text of an id: the white space before it, and the rest, in bytes."""

    separator: bytes
    rest: bytes


def parted(piece: bytes) -> Spelling:
    """The white space with which bytes begin, and the rest."""
    found = WHITE_SPACE.match(piece)
    assert found is not None, "the expression matches no bytes too"
    return Spelling(found[0], piece[found.end():])
