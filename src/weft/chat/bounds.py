"""How large what a template makes may become, known before it is made.

Every value comes from an operator, a call, a filter, a literal or captured text. Each of them either gives no more than
it is given, or is looked at here first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

LARGEST = 16_000_000
"""The most characters of any text in a rendering, and items of a list."""
LARGEST_BITS = 1 << 17
"""Of a whole number: products of numbers take more than linear time."""
OWN_CHARACTERS, PER_VALUE, PER_CHARACTER = 50_000, 1_000, 16
"""The most characters of a rendering: so many of the template's own, and so many more for each value and each character
of what it is given. The longest texts of published templates have some ten thousand; JSON writes a character as up to
twelve. A model reads all of a rendering, so a template that writes a million characters for a greeting would keep it
busy for hours."""
MOST_VALUES = 300_000
"""Of lists and mappings inside one another, those that occur several times counted each time."""

Growth: TypeAlias = Callable[[Any, Sequence[Any]], int]


class TooMuch(Exception):
    """A template exceeds its bounds of steps, time or size."""


def bounded(value: Any) -> Any:
    """``value``, whose size must be within the bounds.

    Raises:
        TooMuch: it is not.
    """
    if isinstance(value, str | bytes):
        if len(value) > LARGEST:
            raise TooMuch(f"it made a text of more than {LARGEST:,} characters")
    elif isinstance(value, list | tuple | dict):
        _require_few(value)
    elif isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        raise TooMuch(f"it made a number of more than {LARGEST_BITS:,} bits")
    return value


def most_written(variables: Any) -> int:
    """The most characters of a rendering of these variables, which are plain data."""
    values, characters = 0, 0
    for value in _values(variables):
        values += 1
        characters += len(value) if isinstance(value, str) else 0
    return min(LARGEST, OWN_CHARACTERS + PER_VALUE * values + PER_CHARACTER * characters)


def joined(pieces: Iterable[str], most: int = LARGEST) -> str:
    """The pieces as one text of at most ``most`` characters.

    Raises:
        TooMuch: they are longer.
    """
    parts, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > most:
            raise TooMuch(f"it wrote more than {most:,} characters")
        parts.append(piece)
    return "".join(parts)


def require_small_result(operator: str, left: Any, right: Any) -> None:
    """Raise `TooMuch` for ``'a' * 10**10`` and ``9 ** 9 ** 9`` before they are computed."""
    size, most = 0, LARGEST
    if operator == "*":
        lengths = [len(side) for side in (left, right) if isinstance(side, str | bytes | list | tuple)]
        counts = [side for side in (left, right) if isinstance(side, int)]
        size = max(lengths, default=0) * max(counts, default=0)
        if len(counts) == 2:
            size, most = sum(side.bit_length() for side in counts), LARGEST_BITS
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        size, most = left.bit_length() * max(0, right), LARGEST_BITS
    elif operator == "%" and isinstance(left, str | bytes):
        size = _formatted(str(left), right if isinstance(right, tuple) else (right,))
    _require(size, most)


def require_small_call(name: str, subject: Any, arguments: Iterable[Any]) -> None:
    """Raise `TooMuch` for a method of a value or a filter whose result would be too large.

    Args:
        name: of the method or filter.
        subject: the value that it is called on.
        arguments: of the call, those given by name among them.
    """
    if name in GROWS:
        _require(GROWS[name](subject, list(arguments)), LARGEST)


def _require(size: int, most: int) -> None:
    if size > most:
        raise TooMuch(f"it made something larger than {most:,}")


def _require_few(value: Any) -> None:
    level, count = [value], 0
    while level:
        inner = [item for each in level for item in (each.values() if isinstance(each, dict) else each)
                 if isinstance(item, list | tuple | dict)]
        count += sum(map(len, level))
        if count > MOST_VALUES:
            raise TooMuch(f"it made lists of more than {MOST_VALUES:,} values")
        level = inner


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 20


def _whole(arguments: Sequence[Any]) -> int:
    return max((abs(each) for each in arguments if isinstance(each, int)), default=0)


def _replaced(subject: Any, arguments: Sequence[Any]) -> int:
    texts = [each for each in arguments if isinstance(each, str | bytes)]
    if len(texts) < 2 or not isinstance(subject, str | bytes):
        return 0
    found = subject.count(texts[0])  # type: ignore[arg-type]  # text and bytes are not mixed, or Python refuses it
    return len(subject) + found * len(texts[1])


def _joined(subject: Any, arguments: Sequence[Any]) -> int:
    """Of ``separator.join(items)`` and of ``items | join(separator)``."""
    lists = [each for each in (subject, *arguments) if isinstance(each, list | tuple | dict | str)]
    counts = max(map(len, lists), default=0)
    separator = min((len(each) for each in (subject, *arguments) if isinstance(each, str | bytes)), default=0)
    texts = sum(_length(item) for each in lists if not isinstance(each, str) for item in each)
    return counts * separator + texts


def _lines(subject: Any, arguments: Sequence[Any]) -> int:
    """Of what writes something before every line: a width, or a text."""
    before = max(_whole(arguments), *(len(each) for each in arguments if isinstance(each, str)), 0)
    return _length(subject) + before * (str(subject).count("\n") + 1 if isinstance(subject, str) else MOST_VALUES)


def _tabs(subject: Any, arguments: Sequence[Any]) -> int:
    return _length(subject) + _whole(arguments) * (subject.count("\t") if isinstance(subject, str) else 1)


def _wrapped(subject: Any, arguments: Sequence[Any]) -> int:
    longest = max((len(each) for each in arguments if isinstance(each, str)), default=1)
    return _length(subject) * max(1, longest)


def _formatted(form: Any, arguments: Iterable[Any]) -> int:
    """Of ``%`` and ``format``: every place of the form may write the longest argument, as wide as a number says."""
    given = list(arguments)
    widths = [int(width) for width in re.findall(r"\d{1,18}", str(form)[:LARGEST])]
    widest = max([_whole(given), *widths, *map(_length, given)], default=0)
    return _length(form) + widest * max(1, str(form).count("{") + str(form).count("%"))


def _translated(subject: Any, arguments: Sequence[Any]) -> int:
    values = [_length(each) for table in arguments if isinstance(table, dict) for each in table.values()]
    return _length(subject) * max(values, default=1)


def _padded(subject: Any, arguments: Sequence[Any]) -> int:
    return _whole(arguments)


def _indented(subject: Any, arguments: Sequence[Any]) -> int:
    """Of JSON whose every value has a line of its own."""
    return _whole(arguments) * sum(1 for _ in _values(subject)) * 64


def _values(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _values(item)


GROWS: Mapping[str, Growth] = MappingProxyType({
    "replace": _replaced, "join": _joined, "indent": _lines, "expandtabs": _tabs, "wordwrap": _wrapped,
    "format": _formatted, "format_map": _formatted, "translate": _translated, "tojson": _indented,
    **dict.fromkeys(("ljust", "rjust", "center", "zfill", "to_bytes", "batch", "slice", "round"), _padded)})
"""What may give more than it is given, with the most that it gives."""

WITHOUT = ("lipsum", "pprint", "striptags", "urlize", "xmlattr")
"""Functions and filters for HTML pages, which no chat template needs and whose time is not bounded by their result."""
