"""Elements of HTML and SVG from Python values: all but `Markup` is escaped, so data cannot become markup."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, final


@final
class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[str]"
Attributes: TypeAlias = "Mapping[str, str | float | bool | None]"

VOID = frozenset({"meta", "link", "br", "wbr", "line", "path", "circle", "rect", "col", "image", "use"})
DIRECTIONS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
INVISIBLE = frozenset("\u200b\u2060\ufeff\u00ad\u2028\u2029")


def tag(name: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """One element; plain strings among the children are escaped, attributes that are None or False omitted."""
    opening = name + "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in VOID and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The children concatenated."""
    return Markup("".join(escape(part) for child in children
                          for part in ([child] if isinstance(child, str) else child)))


def escape(value: str) -> Markup:
    """``value`` for element content and quoted attributes, control characters shown; `Markup` as it is."""
    if isinstance(value, Markup):
        return value
    shown = value if value.isprintable() else "".join(visible(each) or each for each in value)
    return Markup(html.escape(shown))


def annotated(value: str) -> Markup:
    """As `escape`, with invisible characters marked and named."""
    return Markup("".join(_named(each) for each in value))


def visible(character: str) -> str | None:
    """A visible substitute for a character that is invisible or changes the display of its neighbours."""
    code = ord(character)
    if character in "\n\t":
        return None
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or character in DIRECTIONS or character in INVISIBLE:
        return f"\u27e8{code:04X}\u27e9"
    if unicodedata.category(character) in ("Cn", "Co"):
        return f"\u27e8{code:04X}\u27e9"
    return None


def _named(character: str) -> str:
    shown = visible(character)
    if shown is None:
        return html.escape(character)
    return f'<span class="control" title="U+{ord(character):04X}">{shown}</span>'


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f' {key}=""'
    text = value if isinstance(value, str) else format(value, ".10g")
    if '"' in text:  # JSON: half as long between apostrophes
        return f" {key}='{escape(text).replace('&quot;', chr(34))}'"
    return f' {key}="{escape(text)}"'


def listed(parts: Sequence[Child], last: str = "and") -> Markup:
    """``a, b and c``."""
    pieces: list[Child] = []
    for index, part in enumerate(parts):
        pieces += [part, "" if index == len(parts) - 1 else f" {last} " if index == len(parts) - 2 else ", "]
    return join(*pieces)


def width_of(value: str) -> int:
    """Columns that text takes, two for wide characters."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1
               for each in value)


def shorten(value: str, columns: int) -> str:
    """``value`` in at most so many columns, the middle omitted, since names often differ at both ends."""
    if width_of(value) <= columns:
        return value
    head, tail = _take(value, columns // 2), _take(value[::-1], (columns - 1) // 2)[::-1]
    return f"{head}\u2026{tail}"


def _take(value: str, columns: int) -> str:
    taken = ""
    for character in value:
        if width_of(taken + character) > columns:
            break
        taken += character
    return taken
