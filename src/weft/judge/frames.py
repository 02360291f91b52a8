"""Messages between the process that judges and the one that answers: a line of JSON, then the bytes of its arrays.

Nothing that is read here runs code: arrays are of a few types, and their sizes are bounded before they are read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

TYPES = ("<f4", "<f8", "<i8")
"""The types of arrays that are sent."""
LONGEST = 1 << 24
"""The most bytes of a line."""
LARGEST = 1 << 30
"""The most bytes of the arrays of a message."""


class FrameError(Exception):
    """The bytes that were read are no message."""


def frame(message: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> bytes:
    """A message as bytes.

    Raises:
        FrameError: it is larger than `LONGEST` or `LARGEST`, or of other types than `TYPES`.
    """
    kinds = [[each.dtype.str, list(each.shape)] for each in arrays]
    line = json.dumps({**message, "arrays": kinds}).encode("ascii") + b"\n"
    if len(line) > LONGEST or sum(each.nbytes for each in arrays) > LARGEST:
        raise FrameError("a message of too many bytes")
    if any(kind not in TYPES for kind, _ in kinds):
        raise FrameError(f"an array of {[kind for kind, _ in kinds]}")
    return line + b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)


def read_frame(line: bytes, take: Callable[[int], bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The message that begins with a line, and its arrays.

    Args:
        line: the line.
        take: returns so many of the bytes that follow, or fewer where there are no more.

    Raises:
        FrameError: it is nothing that `frame` writes.
    """
    try:
        message = json.loads(line)
        kinds = [(str(kind), tuple(map(int, shape))) for kind, shape in message.pop("arrays")]
        sizes = [math.prod(shape) * int(kind[2:]) for kind, shape in kinds]
        legal = all(kind in TYPES and len(shape) <= 4 and min(shape, default=0) >= 0 for kind, shape in kinds)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise FrameError("no line of JSON with its arrays") from None
    if not legal or sum(sizes) > LARGEST:
        raise FrameError("arrays of another type or of too many bytes")
    contents = [take(size) for size in sizes]
    if any(len(content) != size for content, size in zip(contents, sizes, strict=True)):
        raise FrameError("fewer bytes than its arrays have")
    return message, [np.frombuffer(content, kind).reshape(shape)
                     for content, (kind, shape) in zip(contents, kinds, strict=True)]
