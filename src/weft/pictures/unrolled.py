"""The graph of a recurrent model, unrolled in time: tokens, layers with their states, predictions and their losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from weft.blocks.base import Composite
from weft.core.declarations import Trait
from weft.core.layer import Layer, Pointwise, traits_of
from weft.core.model import LanguageModel
from weft.drawing.figure import Figure
from weft.drawing.marks import label, text_box, wire
from weft.drawing.markup import Markup, join, tag
from weft.drawing.numbers import si
from weft.pictures.folding import Fold, Folded, folded

WIDE, HIGH, APART, STEP = 150.0, 38.0, 56.0, 24.0
"""Sizes of a box; room between columns, for the arrows of time, and between rows."""
TIMES = ("1", "2", "3", "T")
"""The tokens that are drawn; a gap stands before the last."""


@dataclass(frozen=True)
class LayerRow:
    """A layer of the graph.

    Attributes:
        line: beneath it, such as the size of its state.
        carries: whether an arrow leads from each token to the next: the state.
        grows: whether that state is keys and values, or anything else that grows with the tokens.
        times: how often the row occurs, with those of the same pattern: `` × 3``; empty for once.
    """

    title: str
    line: str = ""
    carries: bool = False
    grows: bool = False
    times: str = ""


def is_recurrent(model: nn.Module) -> bool:
    """Whether a layer of the model has a state of bounded size and attends to nothing."""
    return isinstance(model, LanguageModel) and any(row.carries and not row.grows for row in rows_of(model))


def rows_of(model: LanguageModel) -> list[LayerRow]:
    """The layers of a model in order, those that carry nothing joined to one row for each run of them."""
    rows: list[LayerRow] = []
    for layer in _layers(model):
        row = _row(layer)
        if not row.carries and rows and not rows[-1].carries:
            titles = dict.fromkeys([*rows[-1].title.split(", "), row.title])
            rows[-1] = LayerRow(", ".join(titles))
        else:
            rows.append(row)
    return list(_once(folded(rows, rows), ""))


def _once(rows: Folded[LayerRow], times: str) -> Iterator[LayerRow]:
    """The rows of repeated patterns once, with how often they occur."""
    for row in rows:
        if isinstance(row, Fold):
            yield from _once(row.items, f" × {row.repeat}{times}")
        else:
            yield replace(row, times=times)


def _layers(module: nn.Module) -> Iterator[Layer]:
    """The layers inside that call no others, in the order of the model, without those of an encoder beside it."""
    for name, child in module.named_children():
        if name == "encoder":
            continue
        if isinstance(child, Layer) and not isinstance(child, Composite):
            yield child
        else:
            yield from _layers(child)


def _row(layer: Layer) -> LayerRow:
    title = type(layer).__name__
    if isinstance(layer, Pointwise) or layer.declares().source_width is not None or not layer_has_state(layer):
        return LayerRow(title)
    own = {name: found for name, found in layer.init_state(1).tensors().items() if not name.startswith("clock")}
    grows = layer.declares().attended is not None or any(field.grows is not None for _, field in own.values())
    count = sum(tensor.numel() for tensor, _ in own.values())
    if not own:
        return LayerRow(title)
    return LayerRow(title,
                    "keys and values" if layer.declares().attended is not None else f"state: {si(count)} numbers",
                    carries=True, grows=grows)


def layer_has_state(layer: Layer) -> bool:
    """Whether a layer can be given its tokens in pieces: one that attends to later tokens cannot."""
    return Trait.BIDIRECTIONAL not in traits_of(layer)


def unrolled(model: LanguageModel, name: str = "unrolled") -> Figure:
    """The graph of a language model over its first tokens and its last, with the loss of each prediction."""
    rows = [LayerRow("embedding"), *rows_of(model), LayerRow("readout")]
    pitch, lines = WIDE + APART, len(rows)
    bottom = 70 + (lines + 1) * (HIGH + STEP) + 14
    marks: list[Markup] = []
    for index, time in enumerate(TIMES):
        x = 20 + index * pitch + (APART if time == TIMES[-1] else 0)
        marks.append(_time(rows, x, bottom, time, index))
    width = 20 + len(TIMES) * pitch + 20
    total = "L = −(1/T) Σ log p(x(t+1) | x(1) ... x(t))"
    body = join(marks, label(20, 18, total, kind="head"),
                label(width - 20, 18, "gradients flow against the arrows, back through time", anchor="end"))
    words = (f"The model's graph over tokens 1 to T: {', then '.join(row.title for row in rows)}; "
             f"{', '.join(row.title for row in rows if row.carries)} pass a state on to the next token; the loss is "
             "the mean of the negative log-probabilities of each next token.")
    return Figure(name, "The model unrolled in time", words, width, bottom + 14, body)


def _time(rows: list[LayerRow], x: float, bottom: float, time: str, index: int) -> Markup:
    """One token's column, from the token at the bottom to its loss at the top."""
    last = time == TIMES[-1]
    middle, y = x + WIDE / 2, bottom - 14
    marks = [label(middle, y + 10, f"x({time})", kind="name", anchor="middle")]
    for row in rows:
        marks.append(wire([(middle, y), (middle, y - STEP)], arrow=True))
        y -= STEP + HIGH
        marks.append(text_box(x, y, WIDE, HIGH, row.title, [row.line] if row.line else [], right=row.times.strip(),
                              attributes={"data-row": row.title}))
        if row.carries and index:
            gap = APART + (APART if last else 0)
            marks.append(_carried(row, x, y + HIGH / 2, gap, time, index, last))
    marks.append(wire([(middle, y), (middle, y - STEP)], arrow=True))
    following = "T+1" if last else str(int(time) + 1)
    marks.append(text_box(x, y - STEP - HIGH, WIDE, HIGH, f"−log p(x({following}))", kind="thin",
                          attributes={"data-loss": time}))
    return tag("g", {"data-time": time}, marks)


def _carried(row: LayerRow, x: float, y: float, gap: float, time: str, index: int, last: bool) -> Markup:
    """The arrow of a state from the token before."""
    dots = label(x - gap / 2, y - 6, "…", kind="name", anchor="middle") if last else Markup("")
    return tag("g", {"data-carried": f"{row.title} {time}"},
               wire([(x - gap, y), (x, y)], arrow=True, kind="memory" if row.grows else "wire"), dots)
