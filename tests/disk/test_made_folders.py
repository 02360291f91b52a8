"""A folder that is made for what is then refused is deleted again, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.disk.atomic import made, new_file, replacing


def test_folders_that_were_made_for_nothing_are_deleted_again(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="refused"), made(tmp_path / "there/a/b"):
        assert (tmp_path / "there/a/b").is_dir()
        raise ValueError("refused")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    with made(tmp_path / "there/a/b"):
        pass
    assert (tmp_path / "there/a/b").is_dir()
    with pytest.raises(ValueError, match="refused"), made(tmp_path / "there/a/b"):
        raise ValueError("refused")
    assert (tmp_path / "there/a/b").is_dir(), "it was there before"


def test_a_folder_that_holds_something_stays_with_those_above_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), made(tmp_path / "a/b/c"):
        (tmp_path / "a/b/notes").touch()
        raise ValueError("refused")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/b", "a/b/notes"]


def test_what_stops_the_making_half_way_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), made(tmp_path / "file/a"):
        raise AssertionError("a folder in a file")
    with pytest.raises(FileExistsError), made(tmp_path / "file"):
        raise AssertionError("a file as a folder")
    name = "n" * 300  # longer than a name may be
    with pytest.raises(OSError, match="File name too long"), made(tmp_path / "a/b" / name):
        raise AssertionError("no such name")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_draft_that_is_given_up_leaves_no_folder_above_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), replacing(tmp_path / "a/b/model") as draft:
        (draft / "weights").touch()
        raise ValueError("refused")
    with (pytest.raises(ValueError, match="refused"), made(tmp_path / "a/b"), new_file(tmp_path / "a/b/page") as draft):
        draft.touch()
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []
