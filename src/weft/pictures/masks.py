"""Masks as grids: rows are queries, columns keys, each head that differs by itself.

A mask that excludes keys within a few tokens is drawn token by token. One with a longer border is drawn over twice that
border, in cells of several tokens whose shade is the share of allowed pairs among some that are drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from weft.core.clock import Facts, Keys, Ticks
from weft.core.model import Model
from weft.core.part import Part
from weft.drawing.figure import Cells, Figure, cells_figure
from weft.masks import Documents, Mask, Prefix
from weft.masks.basic import GLOBALS
from weft.masks.picture import lay_out
from weft.pictures.folding import ranges

EXACT, LEAST, COARSE, SAMPLES = 12, 12, 32, 12
"""The longest border that is drawn token by token; tokens that are drawn at least; cells of a coarse grid along each
side; tokens of a cell, at most, whose pairs are evaluated."""


@dataclass(frozen=True)
class EvaluatedMask:
    """A mask evaluated for drawing.

    Attributes:
        heads: for each head that differs, rows of shares of allowed pairs.
        tokens: tokens of a row.
        cell: tokens of a cell along each side.
        note: what was assumed of the tokens.
    """

    heads: tuple[tuple[tuple[float, ...], ...], ...]
    tokens: int
    cell: int
    note: str


def shares_of(mask: Mask, context: int | None = None) -> EvaluatedMask:
    """The share of allowed pairs in every cell of a mask's picture.

    Args:
        context: the most tokens of a row that the model is trained on; None: no limit.
    """
    longest = max(mask.borders(), default=1)
    if longest <= EXACT:
        tokens, cell = min(max(LEAST, 2 * longest), context or 2 * EXACT), 1
    else:
        cell = -(-min(2 * longest, context or 2 * longest) // COARSE)
        tokens = cell * COARSE
    ticks, keys, note = _tokens(mask, tokens)
    if cell == 1:
        allowed = mask.allowed(ticks, keys)
    else:
        picked, of_key = _picked(ticks, keys, tokens, cell)
        allowed = mask.allowed(picked, of_key)
    side = tokens // cell
    share = allowed[0].double().reshape(-1, side, allowed.shape[2] // side, side, allowed.shape[3] // side)
    values = share.mean((2, 4)).tolist()
    return EvaluatedMask(tuple(tuple(tuple(row) for row in head) for head in values), tokens, cell, note)


def _tokens(mask: Mask, tokens: int) -> tuple[Ticks, Keys, str]:
    """The tokens of a picture, with a prefix, documents and facts for masks that read them."""
    kinds = {type(part) for part in _all(mask)}
    index, notes = torch.arange(tokens)[None], list[str]()
    begins = prefix = None
    if Documents in kinds:
        begins = index % max(1, tokens // 2) == 0
        notes.append(f"a document begins at token {tokens // 2}")
    if Prefix in kinds:
        within = index % max(1, tokens // 2) if begins is not None else index
        prefix = within < tokens // 3 if begins is None else within < tokens // 6
        notes.append(f"the first {tokens // 3 if begins is None else tokens // 6} tokens are a prefix")
    ticks, keys = lay_out(tokens, None, begins=begins, count=None, prefix=prefix)
    if mask.reads():
        names = tuple(sorted(mask.reads()))
        marked = torch.stack([(index == 3 if name == GLOBALS else index >= tokens // 2).long() for name in names], -1)
        ticks = replace(ticks, facts=Facts(names, marked, None, None))
        notes += [f"{name} are {'set for token 3' if name == GLOBALS else '1 from the middle on'}" for name in names]
    return ticks, keys, "; ".join(notes)


def _all(mask: Mask) -> list[Mask]:
    return [mask, *(inner for part in mask.parts() for inner in _all(part))]


def _picked(ticks: Ticks, keys: Keys, tokens: int, cell: int) -> tuple[Ticks, Keys]:
    """Some tokens of every cell, as queries and as keys."""
    generator = torch.Generator().manual_seed(0)
    count = min(cell, SAMPLES)
    index = torch.cat([first + torch.randperm(cell, generator=generator)[:count].sort().values
                       for first in range(0, tokens, cell)])
    cut = replace(ticks, order=ticks.order[:, index], begin=ticks.begin[:, index],
                  prefix_end=ticks.prefix_end[:, index], length=ticks.length[:, index])
    begin = None if keys.begin is None else keys.begin[:, index] if keys.begin.shape[1] > 1 else keys.begin
    return cut, Keys(keys.order[:, index], keys.position[:, index], begin, None)


def mask_figure(mask: Mask, name: str, *, title: str = "", context: int | None = None, note: str = "") -> Figure:
    """The picture of a mask."""
    shares = shares_of(mask, context)
    count = len(shares.heads)
    grids = [Cells("" if count == 1 else f"head {index} of every {count}", head)
             for index, head in enumerate(shares.heads)]
    cell = max(5.0, min(14.0, 190.0 / len(shares.heads[0])))
    said = [note, shares.note, "" if shares.cell == 1 else f"each cell is {shares.cell} by {shares.cell} tokens; its "
            "shade is the share of allowed pairs"]
    heading = title or repr(mask)
    words = (f"The mask {mask!r} over {shares.tokens} tokens: rows are queries, columns keys, filled where a query "
             "may attend to a key.")
    return replace(cells_figure(name, heading, words, grids, cell=cell, per_row=3, own=shares.cell == 1),
                   caption=sentence("; ".join(filter(None, said))))


def sentence(words: str) -> str:
    """Words with a large letter at the front and a full stop at the end; nothing stays nothing."""
    return f"{words[0].upper()}{words[1:]}." if words else ""


def blocks_in(paths: Sequence[str]) -> str:
    """The blocks of these layers, in words: ``encoder, blocks 0 to 3``."""
    sides: dict[str, set[int]] = {}
    for path in paths:
        parts = path.split(".")
        number = next((int(part) for part in parts if part.isdigit()), None)
        side = "encoder" if parts[0] == "encoder" else ""
        sides.setdefault(side, set()).update([] if number is None else [number])
    words = [", ".join(filter(None, (side, f"blocks {ranges(numbers)}" if len(numbers) > 1 else
                                     f"block {ranges(numbers)}" if numbers else "")))
             for side, numbers in sides.items()]
    return "; ".join(filter(None, words))


def mask_figures(model: Model) -> list[Figure]:
    """A picture of every mask of a model, with the blocks that have it."""
    found: dict[Mask, list[str]] = {}
    for path, module in model.named_modules():
        mask = module.declares().attended if isinstance(module, Part) else None
        if isinstance(mask, Mask):
            found.setdefault(mask, []).append(path)
    return [mask_figure(mask, f"mask-{index}", context=model.config.context, note=blocks_in(paths))
            for index, (mask, paths) in enumerate(found.items())]
