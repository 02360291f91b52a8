"""Several arrays read as one: the same answers as their concatenation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data.array import JoinedArray, join

PARTS = st.lists(st.binary(max_size=9), min_size=1, max_size=6).filter(any)


def joined(parts: list[bytes]) -> tuple[JoinedArray, np.ndarray]:
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    return JoinedArray(arrays), np.concatenate(arrays)


@settings(max_examples=60, deadline=None)
@given(PARTS, st.data())
def test_places_slices_and_copies_are_those_of_the_whole(parts: list[bytes], data: st.DataObject) -> None:
    array, whole = joined(parts)
    size = len(whole)
    places = np.array(data.draw(st.lists(st.integers(-size, size - 1), max_size=12)), dtype=np.int64)
    np.testing.assert_array_equal(array[places], whole[places])
    np.testing.assert_array_equal(array[places.reshape(1, -1)], whole[places.reshape(1, -1)])
    first, last = data.draw(st.integers(-size - 2, size + 2)), data.draw(st.integers(-size - 2, size + 2))
    for step in (1, 2, -1):
        np.testing.assert_array_equal(array[first:last:step], whole[first:last:step])
    place = data.draw(st.integers(-size, size - 1))
    assert array[place] == whole[place] and np.ndim(array[place]) == 0
    np.testing.assert_array_equal(array[whole > 100], whole[whole > 100])
    for copy in (np.asarray(array), array.copy(), array.astype(np.int64)):
        np.testing.assert_array_equal(copy, whole)
    assert array.tolist() == whole.tolist()
    assert len(array) == size and array.shape == (size,)
    assert array.max() == whole.max() and array.sum() == int(whole.sum())
    np.testing.assert_array_equal(np.flatnonzero(array), np.flatnonzero(whole))


def test_a_slice_within_one_part_is_not_copied_and_types_are_widened() -> None:
    narrow, wide = np.zeros(4, np.uint8), np.full(4, 1000, np.uint16)
    array = JoinedArray([narrow, wide])
    assert np.shares_memory(array[5:7], wide) and array[2:6].tolist() == [0, 0, 1000, 1000]
    assert array.dtype == np.uint16 and array[np.array([0, 7])].tolist() == [0, 1000]
    assert join([wide]) is wide


def test_places_outside_are_refused() -> None:
    array, _ = joined([b"ab", b"c"])
    with pytest.raises(IndexError, match="places from 0 to 3 in an array of 3"):
        array[np.array([0, 3])]
