"""Ragged batches: padding on the right with a count, padding on the left re-aligned."""

from __future__ import annotations

import pytest
import torch

from decoding.small_models import decoder
from weft.core.errors import InputError
from weft.core.span import Span
from weft.decoding import ragged, realign

ROWS = [[5, 3, 9], [4], [], [7, 8]]


def test_rows_are_padded_on_the_right() -> None:
    batch = ragged(ROWS)
    assert batch.tokens.tolist() == [[5, 3, 9], [4, 0, 0], [0, 0, 0], [7, 8, 0]]
    assert (batch.count.tolist(), batch.level, batch.longest) == ([3, 1, 0, 2], False, 3)
    level = ragged([[1, 2], [3, 4]])
    assert level.level and level.counts is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_is_moved_to_the_right(side: str) -> None:
    width, wanted = 4, ragged(ROWS)
    tokens, mask = torch.full((4, width), 99), torch.zeros(4, width, dtype=torch.bool)
    for index, row in enumerate(ROWS):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        tokens[index, place], mask[index, place] = torch.tensor(row, dtype=torch.int64), True
    batch = realign(tokens, mask)
    assert torch.equal(batch.tokens, wanted.tokens) and torch.equal(batch.count, wanted.count)
    assert not batch.level


def test_left_padded_rows_mean_what_they_mean_alone() -> None:
    model = decoder({"kind": "attention", "n_heads": 2, "position": "rope"}, "lstm").eval()
    batch = realign(torch.tensor([[99, 99, 4, 5], [1, 2, 3, 4]]).clamp(max=10),
                    torch.tensor([[False, False, True, True], [True] * 4]))
    with torch.no_grad():
        together = model(batch.tokens, None, Span(count=batch.counts)).y
        alone = model(torch.tensor([[4, 5]])).y
    torch.testing.assert_close(together[0, :2], alone[0], rtol=1e-12, atol=1e-12)


def test_padding_between_tokens_is_refused() -> None:
    tokens = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(InputError, match="mask: row 1 has padding between its tokens"):
        realign(tokens, torch.tensor([[True, True, False], [True, False, True]]))
    with pytest.raises(InputError, match=r"mask: shape \(2, 2\) for tokens of shape \(2, 3\)"):
        realign(tokens, torch.ones(2, 2, dtype=torch.bool))
