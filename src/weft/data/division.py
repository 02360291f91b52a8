"""Where documents begin in a text file: the file, its lines, its paragraphs, or lines that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

from weft.core.errors import DataError
from weft.data.corpus import Document

Unit: TypeAlias = Literal["file", "line", "paragraph"]
LINE = re.compile(r"[^\r\n]+")
PARAGRAPH = re.compile(r"[^\r\n]*\S[^\r\n]*(?:\r?\n[^\r\n]*\S[^\r\n]*)*")


@final
@dataclass(frozen=True)
class Heading:
    """Documents begin at the lines in which ``pattern`` (a regular expression) matches from the line's start on.

    Raises:
        DataError: not a regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        self.compiled()

    def compiled(self) -> re.Pattern[str]:
        """The expression."""
        try:
            return re.compile(rf"^(?:{self.pattern})", re.MULTILINE)
        except re.error as error:
            raise DataError(f"{self.pattern!r} is not a regular expression ({error}).", where="heading",
                            remedy="Give one such as '= [^=]+ =$', and escape its special characters.") from None


Division: TypeAlias = Unit | Heading
"""How a text file becomes documents.

``file``: it is one document. ``line``: each line that is not blank is one, without its line end. ``paragraph``: lines
without a blank line between them are one, without the last line's end. A `Heading` begins one and belongs to it; what
stands before the first is a document too, so that nothing is lost.
"""


def divide(document: Document, how: Division) -> tuple[Document, ...]:
    """The documents of one file's text; each is named after the file and the line it begins at.

    Raises:
        DataError: a `Heading` that matches nowhere, or an unknown unit.
    """
    if how == "file":
        return (document,)
    spans = _headed(document, how) if isinstance(how, Heading) else _units(document, how)
    return tuple(_numbered(document, spans))


def _units(document: Document, unit: str) -> Iterator[tuple[int, int]]:
    if unit not in get_args(Unit):
        raise DataError(f"{unit!r} is no way to divide a text file.", where="documents",
                        remedy=f"Give one of {', '.join(get_args(Unit))}, or a heading.")
    found = (LINE if unit == "line" else PARAGRAPH).finditer(document.text)
    return (match.span() for match in found if match[0].strip())


def _headed(document: Document, how: Heading) -> Iterator[tuple[int, int]]:
    text = document.text
    places = [match.start() for match in how.compiled().finditer(text)]
    if not places:
        raise DataError(f"no line matches the heading {how.pattern!r}.", where=document.name,
                        remedy="Correct the expression, or leave it out: then the file is one document.")
    starts = places if places[0] == 0 else [0, *places]
    return ((first, last) for first, last in zip(starts, [*starts[1:], len(text)], strict=True) if last > first)


def _numbered(document: Document, spans: Iterator[tuple[int, int]]) -> Iterator[Document]:
    line, seen = 1, 0
    for first, last in spans:
        line += document.text.count("\n", seen, first)
        seen = first
        yield Document(f"{document.name}:{line}", document.text[first:last])


