"""The drawing of an architecture: tokens rise from the bottom, an encoder stands at the left of its decoder."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.drawing.figure import Figure
from weft.drawing.marks import LETTER, LINE, Point, label, plus, text_box, wire, wrapped
from weft.drawing.markup import Markup, join, tag
from weft.pictures.architecture import (
    BlockPicture,
    BranchPicture,
    Element,
    ModelColumn,
    ModelDrawing,
    PartBox,
    StepPicture,
)
from weft.pictures.folding import Fold

WIDE, THIN, BETWEEN = 250.0, 18.0, 12.0
"""Width of a box; height of a thin one; length of the wire between boxes."""
SIDE_BY_SIDE = 200.0
"""Width of each of several boxes beside one another."""
AROUND, BESIDE, APART = 14.0, 26.0, 44.0
"""Room between a frame and what it holds; between boxes and the wire that passes them; between columns."""
MOST_LINES = 7
"""Lines of text in a box."""


@dataclass
class Sheet:
    """The shapes drawn so far, from the bottom upwards.

    Attributes:
        y: how far up the stream has been drawn, at first 0; above is less.
        readers: the left edges of boxes that read the encoded source.
    """

    x: float
    y: float = 0.0
    marks: list[Markup] = field(default_factory=list)
    readers: list[Point] = field(default_factory=list)

    def rise(self, length: float = BETWEEN, *, arrow: bool = False) -> None:
        """Draw the stream upwards."""
        self.marks.append(wire([(self.x, self.y), (self.x, self.y - length)], arrow=arrow))
        self.y -= length


def figure(picture: ModelDrawing, name: str = "architecture") -> Figure:
    """The drawing of a whole architecture."""
    widths = [max(map(_element_width, column.elements)) for column in picture.columns]
    sheets, left = list[Sheet](), 0.0
    for column, width in zip(picture.columns, widths, strict=True):
        left += 16 if not sheets else APART
        sheets.append(_column(column, left + width / 2, width))
        left += width
    top = min(sheet.y for sheet in sheets)
    lowest = 34.0
    gutter = sheets[-1].x - widths[-1] / 2 - APART / 2
    markup = join([tag("g", {"data-column": column.title}, sheet.marks)
                   for column, sheet in zip(picture.columns, sheets, strict=True)], _memory(sheets, gutter))
    body = tag("g", {"transform": f"translate(0 {8 - top:g})"}, markup)
    return Figure(name, f"Architecture of {picture.title}", described(picture), left + 16, lowest - top + 8, body)


def _column(column: ModelColumn, x: float, width: float) -> Sheet:
    sheet = Sheet(x)
    sheet.marks.append(label(x, 16, column.enters, kind="name", anchor="middle"))
    for element in column.elements:
        _element(sheet, element, width)
    sheet.rise(BETWEEN + 4, arrow=True)
    return sheet


def _element(sheet: Sheet, element: Element, width: float) -> None:
    if isinstance(element, Fold):
        _fold(sheet, element, width)
    elif isinstance(element, BlockPicture):
        _block(sheet, element, width)
    else:
        sheet.rise(arrow=True)
        _box(sheet, element, WIDE)


def _fold(sheet: Sheet, fold: Fold[BlockPicture], width: float) -> None:
    """A frame around a pattern, with how often it occurs."""
    sheet.rise(8)
    bottom = sheet.y
    for item in fold.items:
        _element(sheet, item, width - 2 * AROUND)
    sheet.rise(22)
    sheet.marks.append(_frame(sheet.x, bottom, sheet.y, width, f"× {fold.repeat}", {"data-repeat": str(fold.repeat)}))


def _block(sheet: Sheet, block: BlockPicture, width: float) -> None:
    sheet.rise(8)
    bottom = sheet.y
    for step in block.steps:
        _step(sheet, step)
    sheet.rise(20)
    name = f"{block.kind} block" if block.wired else f"{block.kind}: wiring unknown"
    sheet.marks.append(_frame(sheet.x, bottom, sheet.y, width, name, {"data-block": block.kind}, kind="edge"))


def _frame(x: float, bottom: float, top: float, width: float, text: str, attributes: dict[str, str], *,
           kind: str = "frame") -> Markup:
    outline = tag("rect", {"class": kind, "x": x - width / 2, "y": top, "width": width, "height": bottom - top,
                           "rx": 7})
    return tag("g", dict(attributes), outline,
               label(x - width / 2 + 8, top + 14, text, kind="head" if kind == "frame" else None,
                     columns=int((width / 2 - 16) / LETTER)))


def _step(sheet: Sheet, step: StepPicture) -> None:
    """Branches, their sum, and the wire that passes them at the right."""
    sheet.rise(8)
    passing = sheet.y if step.skip == "stream" else None
    if step.entering is not None:
        sheet.rise(arrow=True)
        _box(sheet, step.entering, WIDE)
        sheet.rise(8)
        passing = sheet.y if step.skip == "entering" else passing
    half = _branches(sheet, step)
    sums = passing is not None or len(step.branches) > 1
    if sums:
        sheet.rise(10 + 6.5, arrow=False)
        middle, side = sheet.y + 0.0, sheet.x + half + BESIDE - 10
        if passing is not None:
            sheet.marks.append(tag("g", {"data-wire": step.skip}, wire(
                [(sheet.x, passing), (side, passing), (side, middle), (sheet.x + 6.5, middle)], arrow=True)))
        sheet.marks.append(plus(sheet.x, middle))
        if step.scale != 1.0:
            sheet.marks.append(label(sheet.x - 12, middle + 4, f"× {step.scale:g}", anchor="end"))
    if step.after is not None:
        sheet.rise(BETWEEN + 6.5, arrow=True)
        _box(sheet, step.after, WIDE)


def _branches(sheet: Sheet, step: StepPicture) -> float:
    """The branches beside one another, from and to the stream; half of their width."""
    if len(step.branches) == 1:
        _branch(sheet, step.branches[0], WIDE)
        return WIDE / 2
    start, count = sheet.y, len(step.branches)
    pitch = SIDE_BY_SIDE + BETWEEN
    insides = []
    for index, branch in enumerate(step.branches):
        inside = Sheet(sheet.x + (index - (count - 1) / 2) * pitch, start - 6)
        sheet.marks.append(wire([(sheet.x, start), (sheet.x, start - 6), (inside.x, start - 6)]))
        _branch(inside, branch, SIDE_BY_SIDE)
        insides.append(inside)
    top = min(inside.y for inside in insides) - 8
    for inside in insides:
        inside.rise(inside.y - top)
        inside.marks.append(wire([(inside.x, top), (sheet.x, top)]))
        sheet.marks += inside.marks
        sheet.readers += inside.readers
    sheet.y = top
    return (count * pitch - BETWEEN) / 2


def _branch(sheet: Sheet, branch: BranchPicture, width: float) -> None:
    for box in (branch.before, branch.layer, branch.after):
        if box is not None:
            sheet.rise(arrow=True)
            _box(sheet, box, width)


def _box(sheet: Sheet, box: PartBox, width: float) -> None:
    """A part, on the stream."""
    attributes = {"data-part": box.title}
    if box.thin:
        sheet.marks.append(text_box(sheet.x - 0.4 * width, sheet.y - THIN, 0.8 * width, THIN, box.title, kind="thin",
                                    attributes=attributes))
        sheet.y -= THIN
        return
    columns = int((width - 16) / LETTER)
    lines = [piece for line in box.lines for piece in wrapped(line, columns, 3)][:MOST_LINES]
    height = 23 + LINE * len(lines)
    sheet.marks.append(text_box(sheet.x - width / 2, sheet.y - height, width, height, box.title, lines,
                                right=box.note, attributes=attributes))
    if box.memory:
        sheet.readers.append((sheet.x - width / 2, sheet.y - height / 2))
    sheet.y -= height


def _memory(sheets: list[Sheet], gutter: float) -> Markup:
    """The wires from the top of the encoder to the layers that read it."""
    if len(sheets) < 2 or not sheets[-1].readers:
        return Markup("")
    source, readers = sheets[0], sheets[-1].readers
    trunk = wire([(source.x, source.y), (source.x, source.y - 8), (gutter, source.y - 8)], kind="memory")
    return tag("g", {"data-wire": "memory"}, trunk, [
        wire([(gutter, source.y - 8), (gutter, y), (x, y)], kind="memory", arrow=True) for x, y in readers])


def _element_width(element: Element) -> float:
    if isinstance(element, Fold):
        return max(_element_width(item) for item in element.items) + 2 * AROUND
    if isinstance(element, PartBox):
        return WIDE
    most = max(len(step.branches) for step in element.steps)
    boxes = WIDE if most == 1 else most * (SIDE_BY_SIDE + BETWEEN) - BETWEEN
    return boxes + 2 * (AROUND + BESIDE)


def described(picture: ModelDrawing) -> str:
    """The drawing in words, from the bottom to the top."""
    return ". ".join(f"{column.title}: " + ", ".join(_words(element) for element in column.elements)
                     for column in picture.columns) + "."


def _words(element: Element) -> str:
    if isinstance(element, Fold):
        return f"{element.repeat} times ({', '.join(_words(item) for item in element.items)})"
    if isinstance(element, BlockPicture):
        layers = [branch.layer.title for step in element.steps for branch in step.branches]
        return f"{element.kind} block of {' and '.join(layers)}"
    return element.title
