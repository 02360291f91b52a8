"""What masks promise of their bands, over random masks and rows; and blocks against whole masks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from masks.test_mask_rules import LEAVES, Row, rows, seen, trees
from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Band, Causal, GlobalTokens, Mask, PerHead, Strided, SymmetricWindow, Window
from weft.masks.visible import Grid, MaskFacts, visible

STEPS = 300


def inside(band: Band, i: int, j: int, begin: int) -> bool:
    """Whether a band lets query i see key j of its document."""
    if j > i:
        return band.ahead is None or j - i <= band.ahead
    return band.size is None or i - j < band.size or j - begin < band.first


@settings(max_examples=150, deadline=None)
@given(mask=trees(LEAVES), row=rows())
def test_a_mask_allows_nothing_outside_its_band(mask: Mask, row: Row) -> None:
    allowed, band = seen(mask, row), mask.band()
    for i in range(row.count):
        for j in range(row.begin(i), row.count):
            if row.begin(j) == row.begin(i) and allowed[:, i, j].any():
                assert inside(band, i, j, row.begin(i)), (mask, band, i, j)


@pytest.mark.parametrize(("mask", "band"), [
    (Causal(), Band(None, 0)), (Window(5), Band(5, 0)), (SymmetricWindow(2, 3), Band(3, 3)),
    (SymmetricWindow(1, 2, 3), Band(4, 6)),
    (Causal() & (Window(4) | GlobalTokens(0, 2)), Band(4, 0, 3)), (Window(4) | Strided(3), Band(None, 0)),
    (Causal() & Window(9) & Window(4), Band(4, 0)), (Window(2) | Window(7), Band(7, 0)),
    (PerHead(Window(2), SymmetricWindow(5, 1)), Band(6, 1)), (~Window(2), Band()), (GlobalTokens(1), Band(1, None, 2)),
    ((Window(9) | GlobalTokens(0)) & (Window(4) | GlobalTokens(3)), Band(4, None, 4)),
])
def test_bands(mask: Mask, band: Band) -> None:
    assert mask.band() == band


@settings(max_examples=40, deadline=None)
@given(steps=st.integers(1, 40), earlier=st.integers(0, 20), size=st.integers(1, 30), ahead=st.integers(0, 5),
       first=st.integers(0, 6), block=st.integers(1, 12))
def test_every_pair_of_a_band_stands_in_one_column_of_one_block(steps: int, earlier: int, size: int, ahead: int,
                                                                first: int, block: int) -> None:
    keys = earlier + steps
    grid = Grid.of(Band(size, ahead, first), steps=steps, keys=keys, offset=earlier, rows=block)
    met = torch.zeros(steps, keys, dtype=torch.int64)
    for part in grid.blocks():
        index = torch.cat([torch.arange(each.start, each.stop) for each in part.keys])
        columns = torch.cat([torch.arange(each.start, each.stop) for each in part.columns])
        assert len(index) == len(columns) == len(columns.unique())
        assert columns.numel() == 0 or (columns.min() >= 0 and columns.max() < grid.width)
        late = index >= grid.first  # a key of the band stands as far from its query in every block
        assert ((columns - index)[late] == grid.first - (earlier + part.queries.start - grid.size + 1)).all()
        met[part.queries.start : part.queries.stop, index] += 1
    assert met.max() <= 1
    for i in range(steps):
        low = max(0, earlier + i - size + 1)
        assert (met[i, low : min(keys, earlier + i + ahead + 1)] == 1).all()
        assert (met[i, : min(first, keys)] == 1).all()


@pytest.mark.parametrize("mask", [Window(7), Causal() & (Window(3) | GlobalTokens(0, 1)), SymmetricWindow(2, 4),
                                  PerHead(Window(2), Strided(3) & Window(20))], ids=repr)
def test_what_is_laid_on_the_grid_is_the_mask(mask: Mask) -> None:
    span = WHOLE.resolve(None, torch.empty(1, STEPS))
    found = visible(MaskFacts.of(mask, 2), Keys.of(span.ticks), span)
    grid = Grid.of(found.band(), steps=STEPS, keys=STEPS, offset=0, rows=32)
    hidden, allowed = found.hidden(grid), torch.zeros(2, STEPS, STEPS, dtype=torch.bool)
    for block in grid.blocks():
        at = block.queries
        rows = slice(0, at.stop - at.start) if hidden.shape[2] == grid.rows else at
        # The same keys in the same order, but not cut at the same places.
        index, columns = (torch.cat([torch.arange(part.start, part.stop) for part in parts])
                          for parts in (block.keys, block.columns))
        allowed[:, at, index] = ~hidden[0][:, rows, columns].expand(2, -1, -1)
    assert torch.equal(allowed, mask.dense(STEPS)[0].expand(2, -1, -1))
