"""Tables, which scroll in a box on narrow screens, and strips: charts as wide as a cell, one per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.drawing.axes import Axis
from weft.drawing.markup import Attributes, Child, Markup, join, tag


@dataclass(frozen=True)
class Column:
    """A column; numbers are aligned on the right.

    Attributes:
        note: a second line of the header, such as what was matched.
        wraps: whether its words may stand on several lines; those of a number never do.
    """

    head: Child
    note: Child = ""
    number: bool = True
    wraps: bool = True

    @property
    def kind(self) -> str | None:
        """The style class of its header."""
        return "number" if self.number else None if self.wraps else "unbroken"

    @property
    def cells(self) -> str | None:
        """The style class of its cells: of a number, which most are, none."""
        return None if self.number else "text" if self.wraps else "text unbroken"


def table(caption: Child, columns: Sequence[Column], rows: Sequence[Sequence[Child]], *, name: str,
          attributes: Attributes | None = None, row_attributes: Sequence[Attributes] | None = None) -> Markup:
    """A table whose first column names the row."""
    notes = [tag("span", {"class": "head-note"}, column.note) if column.note else "" for column in columns]
    head = tag("thead", None, tag("tr", None, [
        tag("th", {"scope": "col", "class": column.kind}, column.head, " " if note else "", note)
        for column, note in zip(columns, notes, strict=True)]))
    given = row_attributes or [{}] * len(rows)
    body = tag("tbody", None, [tag("tr", each, row_cells(columns, row)) for each, row in zip(given, rows, strict=True)])
    whole = tag("table", attributes, tag("caption", {"id": f"{name}-caption"},
                                         tag("span", {"class": "cap"}, caption)), head, body)
    return tag("div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-labelledby": f"{name}-caption"},
               whole)


def row_cells(columns: Sequence[Column], row: Sequence[Child]) -> Markup:
    """The cells of a row, its first a header."""
    cells = [tag("th", {"scope": "row", "class": columns[0].kind}, row[0])]
    cells += [tag("td", {"class": column.cells}, cell) for column, cell in zip(columns[1:], row[1:], strict=True)]
    return join(cells)


def folded(summary: Child, *content: Child) -> Markup:
    """Content that is folded behind a summary line."""
    return tag("details", None, tag("summary", None, summary), *content)


def facts(pairs: Sequence[tuple[str, Child]]) -> Markup:
    """A list of terms and values."""
    return tag("dl", {"class": "facts"}, [tag("div", None, tag("dt", None, term), tag("dd", None, value))
                                          for term, value in pairs])


ROW = 26
"""Height of a strip, in pixels."""


def percentage(axis: Axis, value: float) -> str:
    """The coordinate on a strip."""
    return f"{100 * axis.share(value):.2f}%"


def at(axis: Axis, value: float, drawing: Markup) -> Markup:
    """A drawing around the origin, moved to a value of the strip."""
    return tag("svg", {"x": percentage(axis, value), "y": "50%", "overflow": "visible", "width": 1, "height": 1},
               drawing)


def strip(axis: Axis, *children: Markup, zero: bool = False) -> Markup:
    """The part of a chart in one row, whose other cells have the numbers."""
    lines = [tag("line", {"class": "zero" if zero and tick == 0 else "grid", "x1": where, "x2": where, "y1": 0,
                          "y2": "100%"}) for tick in axis.ticks for where in [percentage(axis, tick)]]
    return tag("svg", {"class": "strip", "height": ROW, "width": "100%", "aria-hidden": "true", "focusable": "false"},
               lines, *children)


def rule(axis: Axis, low: float, high: float, kind: str) -> Markup:
    """A horizontal line between two values in the middle of a strip, which is lower on paper."""
    return tag("line", {"class": kind, "x1": percentage(axis, low), "x2": percentage(axis, high), "y1": "50%",
                        "y2": "50%"})


def scale(axis: Axis, title: str, description: str, name: str) -> Markup:
    """The numbers of the axis, with the words of the whole chart."""
    texts = [tag("text", {"class": "tick", "x": percentage(axis, tick), "y": 12, "text-anchor": "middle"},
                 axis.write(tick)) for tick in axis.ticks]
    return tag("svg", {"class": "strip chart", "height": 18, "width": "100%", "role": "img",
                       "aria-labelledby": f"{name}-t {name}-d"},
               tag("title", {"id": f"{name}-t"}, title), tag("desc", {"id": f"{name}-d"}, description), texts)
