"""Where documents begin in a text file: the file, its lines, its paragraphs, or lines that match a pattern."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np

from weft.core.errors import DataError
from weft.data.compression import RELEASED, release
from weft.data.document import Document
from weft.data.document_buffer import SpanTable, TextRange, columns_of

Unit: TypeAlias = Literal["file", "line", "paragraph"]
LINE = re.compile(rb"[^\r\n]+")
LINE_ENDS = (b"\n", b"\r\n")
REPEATS, REPEATED_GROUP = re.compile(r"[*+{]"), re.compile(r"\)[*+{]")
MOST_REPEATS = 3
"""Repetitions in an expression whose time is at most the third power of a line's length."""
SECONDS = 5
MATCHING = """
import json, re, sys
pattern, text = json.load(sys.stdin)
json.dump([match.start() for match in re.compile(pattern, re.MULTILINE).finditer(text)], sys.stdout)
"""
"""What the process runs that matches an expression under a limit of time."""


@dataclass(frozen=True)
class Heading:
    """A document begins at every line whose start matches ``pattern``, a regular expression.

    Raises:
        DataError: ``pattern`` is not a regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        self.compiled()

    @property
    def may_not_end(self) -> bool:
        """Whether the time that it takes may grow faster than the text: a group is repeated, or there are several
        repetitions. Python's expressions have no limit of their own."""
        return len(REPEATS.findall(self.pattern)) > MOST_REPEATS or REPEATED_GROUP.search(self.pattern) is not None

    def compiled(self) -> re.Pattern[str]:
        """The compiled expression."""
        try:
            return re.compile(rf"^(?:{self.pattern})", re.MULTILINE)
        except re.error as error:
            raise DataError(f"{self.pattern!r} is not a regular expression ({error}).", where="heading",
                            remedy="Give one such as '= [^=]+ =$', and escape its special characters.") from None


Division: TypeAlias = Unit | Heading
"""How a text file becomes documents.

``file``: the file is one document. ``line``: each line that is not blank, without its line end. ``paragraph``: each run
of lines without a blank line between them, without the last line end. `Heading`: each heading with the text up to the
next one; text before the first heading is a document too, so that nothing is lost.
"""


def divide(document: Document, how: Division) -> Sequence[Document]:
    """The documents of one file's text; each is named after the file and the line at which it begins. Raises
    `DataError`: a `Heading` matches no line, or the unit is unknown."""
    if how == "file":
        return (document,)
    spans = _headed(document, how) if isinstance(how, Heading) else _units(document, how)
    return SpanTable(document.name, document.utf8, columns_of(_numbered(document.utf8, spans)))


def _units(document: Document, unit: str) -> Iterator[tuple[int, int]]:
    if unit not in get_args(Unit):
        raise DataError(f"{unit!r} is not a way to divide a text file.", where="documents",
                        remedy=f"Give one of {', '.join(get_args(Unit))}, or a heading.")
    content = document.utf8
    lines = (found.span() for found in LINE.finditer(content) if str(found[0], "utf-8").strip())
    return lines if unit == "line" else _paragraphs(content, lines)


def _paragraphs(content: memoryview, lines: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join lines that are separated by a single line end."""
    first, last = next(lines, (0, 0))
    for start, end in lines:
        if content[last:start] in LINE_ENDS:
            last = end
        else:
            yield first, last
            first, last = start, end
    if last > first:
        yield first, last


def _headed(document: Document, how: Heading) -> Iterator[tuple[int, int]]:
    text = document.text
    places = _limited(text, how, document.name) if how.may_not_end else [
        match.start() for match in how.compiled().finditer(text)]
    if not places:
        raise DataError(f"no line matches the heading {how.pattern!r}.", where=document.name,
                        remedy="Correct the expression, or leave it out: then the file is one document.")
    starts = [0, *places] if places[0] else places
    at = np.cumsum([len(text[first:last].encode()) for first, last in pairwise([0, *starts, len(text)])]).tolist()
    return ((first, last) for first, last in pairwise(at) if last > first)


def _limited(text: str, how: Heading, where: str) -> list[int]:
    """Where a heading matches, found in a process of its own, which can be ended. Raises `DataError`: that takes longer
    than `SECONDS` and a second for every million characters."""
    asked = json.dumps([how.compiled().pattern, text]).encode()
    try:
        found = subprocess.run([sys.executable, "-I", "-c", MATCHING], input=asked, capture_output=True, check=True,
                               timeout=SECONDS + len(text) / 1e6)
    except subprocess.TimeoutExpired:
        raise DataError(f"the heading {how.pattern!r} was not matched against {len(text):,} characters within "
                        f"{SECONDS + len(text) / 1e6:.0f} seconds: a repetition inside a repetition can be tried in "
                        "more ways than there is time for.", where=where,
                        remedy="Write it without one: a+ for (a+)+.") from None
    places: list[int] = json.loads(found.stdout)
    return places


def _numbered(content: memoryview, spans: Iterator[tuple[int, int]]) -> Iterator[TextRange]:
    line, seen, read = 1, 0, 0
    for first, last in spans:
        if first - read > RELEASED:
            release(content)
            read = first
        line += bytes(content[seen:first]).count(b"\n")
        seen = first
        yield TextRange(first, last, line)
