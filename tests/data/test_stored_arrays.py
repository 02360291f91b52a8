"""Arrays in files: the same answers as in memory, and an error of the file where it becomes shorter while open."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.open_files import open_many
from fresh import fresh
from weft.core.errors import DataError
from weft.data import stored_array
from weft.data.array import JoinedArray, join
from weft.data.stored_array import BLOCK, StoredArray

VALUES = np.random.default_rng(0).integers(0, 1 << 16, 5 * BLOCK).astype("<u2")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of numbers."""
    made = tmp_path_factory.mktemp("stored") / "tokens.bin"
    made.write_bytes(VALUES.tobytes())
    return made


def array(path: Path) -> JoinedArray:
    """The numbers in two parts, the second of which is a range of the file."""
    whole = StoredArray(path, np.dtype("<u2"), len(VALUES))
    found = join([whole.narrow(0, 2 * BLOCK + 3), whole.narrow(2 * BLOCK + 3, len(VALUES))])
    assert isinstance(found, JoinedArray)
    return found


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_windows_slices_and_scattered_places_are_those_of_an_array_in_memory(path: Path, data: st.DataObject) -> None:
    found = array(path) if data.draw(st.booleans()) else join([StoredArray(path, np.dtype("<u2"), len(VALUES))])
    rows = np.array(data.draw(st.lists(st.integers(0, len(VALUES) - 60), min_size=1, max_size=5)))
    windows = rows[:, None] + np.arange(data.draw(st.sampled_from([1, 2, 50])))
    scattered = np.random.default_rng(rows[0]).integers(-len(VALUES), len(VALUES), (3, 70))
    for places in (windows, np.asfortranarray(windows), windows[0], windows[0, 0], scattered, scattered.T,
                   np.sort(scattered.ravel()), scattered[:0]):
        np.testing.assert_array_equal(found[places], VALUES[places])
        assert np.shape(found[places]) == np.shape(VALUES[places])
    first, last = sorted(data.draw(st.tuples(st.integers(0, len(VALUES)), st.integers(0, len(VALUES)))))
    for step in (1, 3, -1):
        np.testing.assert_array_equal(found[first:last:step], VALUES[first:last:step])
    np.testing.assert_array_equal(found.narrow(first, last).copy() if last > first else [], VALUES[first:last])


def test_the_whole_is_read_in_pieces_for_a_maximum_and_a_sum(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.data.array.PIECE", 1000)
    found = array(path)
    assert found.max() == VALUES.max() and found.sum() == int(VALUES.sum(dtype=np.int64))
    assert found.dtype == VALUES.dtype and len(found) == len(VALUES) and found.tolist() == VALUES.tolist()
    np.testing.assert_array_equal(np.flatnonzero(found), np.flatnonzero(VALUES))
    mask = VALUES > 60_000
    np.testing.assert_array_equal(found[mask], VALUES[mask])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found)).copy(), VALUES)


def test_each_window_is_one_read_and_places_near_each_other_are_read_together(
        path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = stored_array._read_at

    def counted(number: int, into: memoryview, place: int) -> int:
        sizes.append(len(into))
        return read(number, into, place)

    monkeypatch.setattr(stored_array, "_read_at", counted)
    found = StoredArray(path, np.dtype("<u2"), len(VALUES))
    found[np.array([[5], [9_000], [40_000]]) + np.arange(100)]
    assert sizes == [200, 200, 200]
    sizes.clear()
    found[np.arange(0, len(VALUES), 8)]
    assert len(sizes) == 5 and max(sizes) <= 2 * BLOCK
    sizes.clear()
    found.narrow(10, 20)
    assert sizes == []


def test_a_file_that_becomes_shorter_is_an_error_and_the_process_lives(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(VALUES.tobytes())
    found = join([StoredArray(path, np.dtype("<u2"), len(VALUES))])
    os.truncate(path, 1000)
    np.testing.assert_array_equal(found[:500], VALUES[:500])
    said = r"tokens\.bin: the file has 1,000 bytes, and 1,002 are read: it has become shorter\."
    with pytest.raises(DataError, match=said):
        found[400:501]
    with pytest.raises(DataError, match="become shorter"):
        found[np.array([[3], [70_000]]) + np.arange(20)]
    with pytest.raises(DataError, match="become shorter"):
        np.cumsum(found)
    with pytest.raises(DataError, match="163,840 are read"):
        StoredArray(path, np.dtype("<u2"), len(VALUES))


def test_a_file_that_is_replaced_under_its_name_is_still_read_and_one_that_is_not_there_is_an_error(
        tmp_path: Path) -> None:
    path, other = tmp_path / "tokens.bin", tmp_path / "other.bin"
    path.write_bytes(VALUES.tobytes())
    found = StoredArray(path, np.dtype("<u2"), len(VALUES))
    other.write_bytes(bytes(2 * len(VALUES)))
    other.replace(path)
    np.testing.assert_array_equal(found[:9], VALUES[:9])
    with pytest.raises(DataError, match=r"none\.bin: the file cannot be read \(No such file or directory\)"):
        StoredArray(tmp_path / "none.bin", np.dtype("<u2"), 1)


def test_what_the_disk_refuses_is_an_error_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = StoredArray(path, np.dtype("<u2"), len(VALUES))

    def broken(number: int, into: memoryview, place: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stored_array, "_read_at", broken)
    with pytest.raises(DataError, match=r"tokens\.bin: the file cannot be read \(Input/output error\)"):
        found[:3]


def test_what_comes_in_several_reads_is_put_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may return less than was asked for, as for reads of more than 2 GiB."""
    read = stored_array._read_at
    monkeypatch.setattr(stored_array, "_read_at", lambda number, into, place: read(number, into[:7], place))
    found = StoredArray(path, np.dtype("<u2"), len(VALUES))
    np.testing.assert_array_equal(found[3:103], VALUES[3:103])


def test_more_files_are_open_than_the_system_first_allows(tmp_path: Path) -> None:
    """A process of its own, whose limit stays with it."""
    VALUES[:50].tofile(tmp_path / "tokens.bin")
    done = fresh(open_many, tmp_path / "tokens.bin", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "200 files; tokens.bin: the file cannot be read (Too many open files)."
