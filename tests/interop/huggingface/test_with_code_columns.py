"""Batches by column: a row in a padded batch, whole or in chunks, gives what that row alone gives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from interop.huggingface.with_code_models import CONFIGS, SOURCED, model, padded, rows, sourced
from weft.core.errors import InputError
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.interop.huggingface.columns import NO_TARGET, Reading, in_rows, memory_of, pack, read, read_source

TOLERANCE = 2e-5
"""Sums in another order, on float32 vectors of the size 5."""


def alone(name: str) -> list[Tensor]:
    """Hidden vectors [T,D] of each row by itself."""
    with torch.no_grad():
        return [model(name).hidden(torch.tensor([row])).y[0] for row in rows()]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_padding_changes_no_row(name: str, side: str) -> None:
    tokens, mask = padded(rows(), side)
    with torch.no_grad():
        y = read(model(name), tokens, mask).y
    for index, wanted in enumerate(alone(name)):
        torch.testing.assert_close(y[index][mask[index].bool()], wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("cuts", [(1, 4, 5, 11), (6, 11)])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_chunks_change_no_row(name: str, side: str, cuts: tuple[int, ...]) -> None:
    """Some chunks are all padding in some rows."""
    tokens, mask = padded(rows(), side)
    reading, found, begin = Reading(), [], 0
    with torch.no_grad():
        for end in cuts:
            found.append(read(model(name), tokens[:, begin:end], mask[:, begin:end], reading).y)
            begin = end
    assert reading.columns == tokens.shape[1]
    y = torch.cat(found, dim=1)
    if "dynamic" in name:  # whose earlier vectors the document's later length would change
        y, mask = y[:, cuts[-2]:], mask[:, cuts[-2]:]
    for index, wanted in enumerate(alone(name)):
        own = y[index][mask[index].bool()]
        torch.testing.assert_close(own, wanted[len(wanted) - len(own):] if "dynamic" in name else wanted,
                                   atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["hybrid", "dynamic"])
def test_padding_reads_as_the_token_before_it(name: str) -> None:
    """Also where that lies in an earlier chunk."""
    tokens, mask = padded(rows(), "right")
    reading = Reading()
    with torch.no_grad():
        whole = read(model(name), tokens, mask).y
        read(model(name), tokens[:, :9], mask[:, :9], reading)
        rest = read(model(name), tokens[:, 9:], mask[:, 9:], reading).y
    for index, row in enumerate(rows()):
        assert torch.equal(whole[index, -1], whole[index, len(row) - 1])
        torch.testing.assert_close(rest[index, -1], whole[index, -1], atol=TOLERANCE, rtol=0)


def test_tokens_stand_where_they_stood() -> None:
    packed = pack(torch.tensor([[9, 5, 9, 6], [7, 9, 9, 9], [9, 9, 9, 9]]), torch.tensor(
        [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]).bool())
    assert packed.tokens.tolist() == [[5, 6], [7, 0], [0, 0]]
    assert packed.count is not None and packed.place is not None
    assert packed.count.tolist() == [2, 1, 0]
    assert packed.place.tolist() == [[0, 1, 1, 2], [1, 1, 1, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("name", ["hybrid", "dynamic"])
def test_a_reading_can_be_copied_and_its_rows_chosen(name: str) -> None:
    tokens, mask = padded(rows(), "left")
    reading = Reading()
    with torch.no_grad():
        read(model(name), tokens[:, :6], mask[:, :6], reading)
        fork = copy.deepcopy(reading)
        whole = read(model(name), tokens[:, 6:], mask[:, 6:], reading).y
        fork.select(torch.tensor([3, 1, 1]))
        again = read(model(name), tokens[[3, 1, 1], 6:], mask[[3, 1, 1], 6:], fork).y
    torch.testing.assert_close(again, whole[[3, 1, 1]], atol=TOLERANCE, rtol=0)
    assert (reading.columns, fork.columns) == (11, 11)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(SOURCED))
def test_padding_of_a_source_changes_no_target(name: str, side: str) -> None:
    """Whole and in chunks, from the source as it was encoded and from its columns."""
    given, mask = padded(rows(), side)
    targets = torch.arange(4 * 9).view(4, 9) % 61
    with torch.no_grad():
        columns, encoded = read_source(sourced(name), given, mask)
        again = memory_of(columns, mask)
        whole = read(sourced(name), targets, memory=encoded.memory).y
        reading = Reading()
        parts = [read(sourced(name), targets[:, first:first + 3], None, reading, again).y for first in (0, 3, 6)]
        for index, row in enumerate(rows()):
            memory = sourced(name).encode(EncoderInputs(torch.tensor([row])))
            alone = sourced(name).hidden(targets[index:index + 1], None, Span(memory=memory)).y[0]
            torch.testing.assert_close(whole[index], alone, atol=TOLERANCE, rtol=0)
            torch.testing.assert_close(parts[-1][index], alone[6:], atol=TOLERANCE, rtol=0)
    assert again.count is not None and again.count.tolist() == [len(row) for row in rows()]
    assert memory_of(columns).count is None and memory_of(columns, torch.ones_like(mask)).count is None


def test_labels_stand_beside_the_token_before_them() -> None:
    logits = torch.arange(8.0).view(2, 4, 1)
    labels = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    moved, targets = in_rows(logits, labels, torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]))
    assert moved[..., 0].tolist() == [[2, 3, 0, 1], [4, 5, 6, 7]]
    assert targets.tolist() == [[3, 4, NO_TARGET, NO_TARGET], [5, 6, 7, NO_TARGET]]
    assert in_rows(logits, labels, None) == (logits, labels)


def test_a_mask_of_another_shape() -> None:
    tokens, mask = padded(rows(), "left")
    with pytest.raises(InputError, match=r"shape \(4, 10\) for tokens of shape \(4, 11\)"):
        read(model("lstm"), tokens, mask[:, 1:])
