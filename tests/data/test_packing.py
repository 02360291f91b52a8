"""Best-fit packing of documents: none that fits is cut, and every token that can be predicted comes once an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data import Batch, PackedBatches, TokenStream
from weft.data.packing import best_fit, pieces_of

DOCUMENTS = st.lists(st.integers(1, 30), min_size=1, max_size=25)


def documents_of(lengths: list[int], *, scored: bool) -> TokenStream:
    """Documents of so many tokens, each token naming its own position. Where the next document's first token is
    predicted from the last one's, the row ends in one more, as `Layout` writes it."""
    lengths = [*lengths, 1] if scored else lengths
    count = sum(lengths)
    return TokenStream(np.arange(count, dtype=np.uint32), np.isin(np.arange(count), np.cumsum([0, *lengths])),
                       (np.arange(count) % 3).astype(np.uint8), scored, count, "numbers", "", "")


def best_fit_by_hand(lengths: list[int], window: int) -> list[int]:
    """Best-fit decreasing, piece by piece, by looking at every row."""
    room: list[int] = []
    rows = [0] * len(lengths)
    for piece in sorted(range(len(lengths)), key=lambda piece: (-lengths[piece], piece)):
        fits = [(left, row) for row, left in enumerate(room) if left >= lengths[piece]]
        if not fits:
            room.append(window)
            fits = [(window, len(room) - 1)]
        rows[piece] = min(fits)[1]
        room[rows[piece]] -= lengths[piece]
    return rows


def epoch_of(batches: PackedBatches, epoch: int) -> list[Batch]:
    """The batches of an epoch of a loader of one row."""
    return [batches.batch(step) for step in range(epoch * batches.windows, (epoch + 1) * batches.windows)]


def real(batch: Batch) -> int:
    return batch.inputs.shape[1] if batch.count is None else int(batch.count[0])


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=60), window=st.integers(12, 20))
def test_rows_are_as_full_as_by_the_algorithm_done_by_hand(lengths: list[int], window: int) -> None:
    rows = best_fit(np.array(lengths), window)
    # Rows with the same room are as good as one another, so what they hold may differ, and how much cannot.
    filled, expected = (sorted(np.bincount(found, weights=lengths).tolist())
                        for found in (rows, best_fit_by_hand(lengths, window)))
    assert filled == expected
    assert max(filled) <= window
    assert set(rows.tolist()) == set(range(len(filled)))


@settings(max_examples=100, deadline=None)
@given(lengths=DOCUMENTS, window=st.integers(2, 12), scored=st.booleans(), seed=st.integers(0, 99))
def test_every_target_comes_once_an_epoch_and_no_document_that_fits_is_cut(lengths: list[int], window: int,
                                                                          scored: bool, seed: int) -> None:
    stream = documents_of(lengths, scored=scored)
    firsts = set(np.cumsum([0, *lengths]).tolist())
    wanted = [place for place in range(1, len(stream)) if scored or place not in firsts]
    if not wanted:
        with pytest.raises(DataError, match="no document has two tokens, so there is nothing to predict"):
            PackedBatches(stream, rows=1, length=window)
        return
    batches = PackedBatches(stream, rows=1, length=window, seed=seed)
    ends = np.cumsum(lengths)
    for epoch in (0, 3):
        found = epoch_of(batches, epoch)
        assert sorted(place for batch in found for place in batch.targets[batch.scored].tolist()) == wanted
        for batch in found:
            count = real(batch)
            inputs, targets, begins = batch.inputs[0, :count], batch.targets[0, :count], batch.begins[0, :count]
            np.testing.assert_array_equal(targets, inputs + 1)
            assert batch.scored[0, :count].all() and not batch.scored[0, count:].any()
            assert batch.scored_bytes == sum(int(place) % 3 for place in targets)
            assert begins[0] and (begins[1:] == (np.diff(inputs.astype(np.int64)) != 1) | np.isin(
                inputs[1:], list(firsts))).all()
            for place in inputs[begins].tolist():
                size = lengths[np.searchsorted(ends, place, side="right")]
                begin = place - (ends - lengths)[np.searchsorted(ends, place, side="right")]
                assert begin == 0 or (size - (not scored) > window and begin % window == 0), "cut where it need not be"


def test_the_order_depends_on_the_seed_alone_and_what_is_together_on_nothing_but_the_text() -> None:
    stream = documents_of([7, 3, 12, 5, 5, 2, 9, 1, 6, 4] * 3, scored=True)
    read = [[batch.inputs.tolist() for batch in epoch_of(PackedBatches(stream, rows=1, length=10, seed=seed), epoch)]
            for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1))]
    assert read[0] == read[1] and read[0] != read[2] and read[0] != read[3]
    assert sorted(read[0]) == sorted(read[2]) == sorted(read[3])
    fixed = PackedBatches(stream, rows=1, length=10, seed=1, reshuffle=False)
    assert [batch.inputs.tolist() for batch in epoch_of(fixed, 1)] == read[0]


def test_padding_is_counted_and_told() -> None:
    batches = PackedBatches(documents_of([7, 3, 12, 5], scored=True), rows=2, length=10)
    # 10 + 2 of the longest, 7 + 3 and 5 + 2: 27 inputs in 3 rows.
    assert (batches.windows, batches.documents, batches.cut_documents) == (3, 4, 1)
    assert batches.tokens_per_batch == pytest.approx(18) and batches.steps_per_epoch == 1.5
    assert batches.notice == ("4 documents packed into 3 windows of 10 tokens; 1 longer than a window cut; padding "
                                  "10.00%")
    assert sum(batches.batch(step).scored_tokens for step in range(3)) == 2 * 27


def test_documents_on_disk_are_found_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = documents_of([7, 3, 12, 5], scored=False)
    whole = pieces_of(stream, 5)
    monkeypatch.setattr("weft.data.packing.READ_AT_ONCE", 4)
    np.testing.assert_array_equal(pieces_of(stream, 5).starts, whole.starts)
    # Documents begin at 0, 7, 10 and 22; the last token of each predicts nothing.
    assert whole.starts.tolist() == [0, 5, 7, 10, 15, 20, 22] and whole.lengths.tolist() == [5, 1, 2, 5, 5, 1, 4]
