"""How many bytes of a text each of its tokens stands for, from character spans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def byte_spans(text: str, spans: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Bytes of ``text`` per token, given the characters [first, last) that each token covers.

    Every byte is counted once, so the lengths sum to the bytes of the text: characters that no token covers go to the
    token after them (at the end, to the last token), characters that several tokens cover go to the first of them.

    Args:
        text: the source text.
        spans: one pair per token, in order, in characters.
    """
    if not spans:
        return np.zeros(0, dtype=np.int32)
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    ends = bytes_before[[last for _, last in spans]]
    ends[-1] = bytes_before[-1]
    covered = np.maximum.accumulate(ends)
    return np.diff(covered, prepend=0).astype(np.int32)
