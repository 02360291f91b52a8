"""Records of JSON files that hold one array of objects, each with the line on which it begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.core.errors import DataError
from weft.data.compression import mark_bytes, read_content
from weft.disk.documents import DECODER, Unreadable, require_shallow, too_deep

ARRAY_SUFFIXES = frozenset({".json"})
SPACE = " \t\r\n"


def array_records(path: Path) -> Iterator[tuple[int, Any]]:
    """The items of the array in a file, in order, each with the number of its first line, from 1.

    The file's text is held whole; its items are decoded one at a time.

    Raises:
        DataError: the file is not UTF-8, is not one JSON array, or is truncated; ``where`` has the line.
    """
    text = _text(path)
    place, line = _after_space(text, 0), 1
    if text[place:place + 1] != "[":
        raise _wrong(path, text, place, "the file is not a JSON array", "Write [{...}, {...}], or one object a line in "
                     "a file whose name ends in .jsonl.")
    counted, place = 0, _after_space(text, place + 1)
    while text[place:place + 1] != "]":
        line += text.count("\n", counted, place)
        counted = place
        try:
            item, after = DECODER.raw_decode(text, place)
            require_shallow(item)
        except json.JSONDecodeError as error:
            raise _wrong(path, text, error.pos, f"not JSON ({error})", "Correct that place.") from None
        except (Unreadable, RecursionError) as error:
            reason = error if isinstance(error, Unreadable) else too_deep()
            raise _wrong(path, text, place, str(reason), "Correct that place.") from None
        yield line, item
        place = _after_space(text, after)
        follows = text[place:place + 1]
        if follows not in (",", "]") or not follows:
            raise _wrong(path, text, place, "the array does not go on or end here", "Copy the file again, whole, or "
                         "put a comma between its items.")
        if follows == ",":
            place = _after_space(text, place + 1)
    rest = _after_space(text, place + 1)
    if rest < len(text):
        raise _wrong(path, text, rest, "text follows the array", "Remove it.")


def _text(path: Path) -> str:
    content = read_content(path)
    mark = mark_bytes(content)
    try:
        return str(memoryview(content)[mark:], "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"the file is not UTF-8: byte 0x{content[mark + error.start]:02x} at offset "
                        f"{mark + error.start}.", where=str(path), remedy="Convert it to UTF-8.") from None


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in SPACE:
        place += 1
    return place


def _wrong(path: Path, text: str, place: int, what: str, remedy: str) -> DataError:
    return DataError(f"{what}.", where=f"{path}, line {text.count(chr(10), 0, place) + 1}", remedy=remedy)
