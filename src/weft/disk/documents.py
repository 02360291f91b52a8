"""Documents that others wrote: read from regular files only, within limits, before anything is made of them.

Whatever a document may cause is an `Unreadable`, a ValueError that says why in one line; `weft.disk.yaml_documents`
holds YAML to the same limits.
"""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any

MEBIBYTE = 2**20
MOST_BYTES = 16 * MEBIBYTE
"""Of a document of settings. The longest published ones have some megabytes (settings of quantised models)."""
MOST_INDEX_BYTES = 64 * MEBIBYTE
"""Of a list of tensors or of tokens with one entry for each. 140,000 tensors of experts take 13 MB."""
MOST_DEPTH = 64
"""Of lists and mappings inside one another. Code that follows a document may call itself once for each."""
MOST_DIGITS = 100
"""Of a whole number: reading decimal digits takes time in the square of their number."""
LONG = re.compile(rf"[0-9]{{{MOST_DIGITS}}}")
"""Digits in a text that may be those of a longer number."""
KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
         (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


class Unreadable(ValueError):
    """A document that is not read; its text is the reason, one line without a full stop."""


def read_document(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: it is missing or may not be read.
        Unreadable: a folder, a pipe or a device, which could block or never end; or a longer file.
    """
    size = require_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Unreadable(f"it has {max(size, len(content)):,} bytes; at most {most:,} are read")
    return content


def require_regular(path: Path) -> int:
    """The size of a regular file in bytes.

    Raises:
        OSError: it is missing or may not be looked at.
        Unreadable: it is no regular file.
    """
    try:
        found = path.stat()
    except ValueError as error:  # a path with a zero character
        raise Unreadable(f"no path of a file: {error}") from None
    if not stat.S_ISREG(found.st_mode):
        what = next((name for holds, name in KINDS if holds(found.st_mode)), "no file")
        raise Unreadable(f"it is {what}, and only regular files are read")
    return found.st_size


def lawful_link(path: Path) -> bool:
    """Whether a link stays in the folder, or leads from a snapshot of the Hub's cache to its blobs."""
    target, folder = path.resolve(), path.parent.resolve()
    cache = folder.parent.parent
    in_cache = folder.parent.name == "snapshots" and target.parent == cache / "blobs"
    return target.is_relative_to(folder) or in_cache


def read_json(path: Path, *, most: int = MOST_BYTES) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: as `read_document`.
        Unreadable: as `read_document`, or no JSON, nested deeper than `MOST_DEPTH`, or with a number of more than
            `MOST_DIGITS` digits.
    """
    return parse_json(read_document(path, most=most))


def parse_json(text: str | bytes, *, once: bool = False) -> Any:
    """The content of a JSON document.

    Args:
        once: whether no name may be given twice in an object; otherwise the last value counts, as everywhere.

    Raises:
        Unreadable: as `read_json`.
    """
    try:
        text = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        decoder = json.JSONDecoder(parse_int=whole_number if LONG.search(text) else int,
                                   object_pairs_hook=_without_repetition if once else None)
        content = decoder.decode(text)
    except Unreadable:
        raise
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    require_shallow(content)
    return content


def whole_number(digits: str) -> int:
    """A decimal number. Raises `Unreadable`: it has too many digits."""
    if len(digits) > MOST_DIGITS:
        require_short(digits)
    return int(digits)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Unreadable(f"it gives {name[:80]!r} twice")
    return content


DECODER = json.JSONDecoder(parse_int=whole_number)
"""Decodes JSON whose whole numbers are short; see `require_shallow` for what it leaves to be looked at."""


def require_short(number: str) -> None:
    """Raise `Unreadable` for a whole number of more than `MOST_DIGITS` characters."""
    if len(number) > MOST_DIGITS:
        raise Unreadable(f"a whole number of {len(number):,} digits ({number[:8]}...); at most {MOST_DIGITS} are read")


def too_deep() -> Unreadable:
    """The error for lists and mappings nested too deeply."""
    return Unreadable(f"lists or mappings nested more than {MOST_DEPTH} deep")


def require_shallow(content: Any) -> None:
    """Raise `Unreadable` for lists and mappings nested more than `MOST_DEPTH` deep."""
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(MOST_DEPTH):
        level = [item for each in level for item in (each.values() if isinstance(each, dict) else each)
                 if isinstance(item, dict | list)]
        if not level:
            return
    raise too_deep()
