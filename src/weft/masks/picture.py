"""Masks drawn: rows are queries, columns are keys."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.clock import Keys, Ticks, resolve_call
from weft.core.errors import InputError

SIDE, GAP, TITLE, LETTER = 16, 24, 20, 8
"""Pixels: side of a cell, gap between heads, height of the title, width of one of its letters."""

OWN, SEEN, HIDDEN = "#1f4e79", "#8db8de", "#f2f2f2"


def lay_out(queries: int, keys: int | None, *, begins: Tensor | None, count: Tensor | None,
            prefix: Tensor | None) -> tuple[Ticks, Keys]:
    """Ticks of the last ``queries`` of ``keys`` tokens, and all the tokens as keys. Raises `InputError`: for more
    queries than keys."""
    total = queries if keys is None else keys
    if queries > total:
        raise InputError(f"{queries} queries among {total} tokens.", where="Mask.dense",
                         remedy="The queries are the last of the tokens: give at least as many keys as queries.")
    given = [part for part in (begins, count, prefix) if part is not None]
    shape = (given[0].shape[0] if given else 1, total)
    device = given[0].device if given else torch.device("cpu")
    ticks = resolve_call(None, shape, device, count=count, begins=begins, prefix=prefix, coordinates=None, horizon=None,
                         one_document=True).ticks
    first = total - queries
    valid = None if ticks.valid is None else ticks.valid[:, first:]
    last = Ticks(ticks.order[:, first:], ticks.begin[:, first:], ticks.prefix_end[:, first:], ticks.length[:, first:],
                 None, valid, ticks.packed)
    return last, Keys.of(ticks)


def text(mask: Bool[Tensor, "B H T S"]) -> str:
    """The first row of the batch: ``#`` allowed, ``.`` not."""
    return _by_head([[["#" if seen else "." for seen in line] for line in head] for head in mask[0].tolist()])


def pixels(heads: Bool[Tensor, "H rows columns"], own: tuple[int, int]) -> str:
    """The keys of the query at ``own`` as an image: ``@`` its own place, ``#`` allowed, ``.`` not."""
    cells = [[["#" if seen else "." for seen in line] for line in head] for head in heads.tolist()]
    for head in cells:
        head[own[0]][own[1]] = "@"
    return _by_head(cells)


def _by_head(cells: list[list[list[str]]]) -> str:
    heads = ["\n".join(" ".join(line) for line in head) for head in cells]
    if len(heads) == 1:
        return heads[0]
    return "\n\n".join(f"head {index}\n{head}" for index, head in enumerate(heads))


def numbers(counts: Int64[Tensor, "T S"]) -> str:
    """Counts in columns of one width, ``.`` for 0."""
    width = len(str(int(counts.max())))
    return "\n".join(" ".join((str(count) if count else ".").rjust(width) for count in line)
                     for line in counts.tolist())


def graded(counts: Int64[Tensor, "T S"], title: str) -> str:
    """Counts as SVG: the smaller the darker, 0 as hidden; every other cell names its count."""
    most = max(int(counts.max()), 1)
    shades = [HIDDEN, *(_between(OWN, SEEN, step / max(most - 1, 1)) for step in range(most))]
    cells = [_square(column * SIDE, line, shades[count], str(count or ""))
             for line, values in enumerate(counts.tolist()) for column, count in enumerate(values)]
    return _page(max(counts.shape[1] * SIDE, LETTER * len(title)), counts.shape[0], title, cells)


def _between(dark: str, light: str, share: float) -> str:
    """The colour at ``share`` of the way from one to the other."""
    pairs = zip(*(bytes.fromhex(colour[1:]) for colour in (dark, light)), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def svg(mask: Bool[Tensor, "B H T S"], title: str) -> str:
    """The first row of the batch."""
    heads = mask[0].tolist()
    rows, columns = mask.shape[2], mask.shape[3]
    width = max(len(heads) * (columns * SIDE + GAP) - GAP, LETTER * len(title))
    cells = [_square(index * (columns * SIDE + GAP) + column * SIDE, line,
                     (OWN if column == line + columns - rows else SEEN) if seen else HIDDEN)
             for index, head in enumerate(heads) for line, values in enumerate(head)
             for column, seen in enumerate(values)]
    return _page(width, rows, title, cells)


def _page(width: int, rows: int, title: str, cells: list[str]) -> str:
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TITLE + rows * SIDE}">'
    caption = f'<title>{name}</title><text x="0" y="14" font-family="monospace" font-size="12">{name}</text>'
    return "\n".join([head, caption, *cells, "</svg>"])


def _square(x: int, line: int, colour: str, count: str = "") -> str:
    inside = f"><title>{count}</title></rect>" if count else "/>"
    return (f'<rect x="{x}" y="{TITLE + line * SIDE}" width="{SIDE - 1}" height="{SIDE - 1}" '
            f'fill="{colour}"{inside}')
