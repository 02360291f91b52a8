"""Whether the batches of an Arrow stream are compressed, which pyarrow unpacks whatever their size.

The head of a message is a FlatBuffer (Apache Arrow, ``Message.fbs``): Message 1 header_type, 2 header; a header of type
3, RecordBatch, has compression as field 3, and one of type 2, DictionaryBatch, has such a batch as field 1. A field
lies where the table at the beginning of its object says, or is missing.
"""

from __future__ import annotations

import struct
from typing import Any

DICTIONARY, BATCH = 2, 3
HEADER_TYPE, HEADER, DATA, COMPRESSION = 1, 2, 1, 3


def packed_batches(file: Any) -> bool:
    """Whether a batch of an open stream is compressed.

    Raises:
        ValueError: the head of a message is damaged.
    """
    from pyarrow import ipc  # type: ignore[import-untyped]

    for message in ipc.MessageReader.open_stream(file):
        try:
            if _is_packed(message.metadata.to_pybytes()):
                return True
        except (struct.error, IndexError) as error:
            raise ValueError(f"the head of a message is damaged: {error}") from None
    return False


def _is_packed(head: bytes) -> bool:
    message = _pointer(head, 0)
    kind, header = _field(head, message, HEADER_TYPE), _field(head, message, HEADER)
    if not kind or not header or head[kind] not in (DICTIONARY, BATCH):
        return False
    found = _pointer(head, header)
    if head[kind] == DICTIONARY:
        data = _field(head, found, DATA)
        if not data:
            return False
        found = _pointer(head, data)
    return bool(_field(head, found, COMPRESSION))


def _pointer(head: bytes, place: int) -> int:
    """Where an object lies whose distance stands at ``place``."""
    (distance,) = struct.unpack_from("<I", head, place)
    return place + int(distance)


def _field(head: bytes, table: int, number: int) -> int:
    """Where a field of an object lies; 0 where it is missing."""
    (back,) = struct.unpack_from("<i", head, table)
    first = table - int(back)
    if first < 0:
        raise IndexError("a table before its beginning")
    (size,) = struct.unpack_from("<H", head, first)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", head, first + 4 + 2 * number)
    return table + int(offset) if offset else 0
