"""The index is made once for each version of the sources, and what is kept is read only if Weft wrote it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fresh import fresh
from index.writing import write_index
from weft.core import registry
from weft.core.errors import InputError
from weft.index import index_cache as storing
from weft.index.index_cache import kept, read_kept
from weft.index.records import Index

EMPTY = Index((), (), (), ())


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """The index as a process of its own makes it."""
    folder = tmp_path_factory.mktemp("index")
    made = fresh(write_index, folder / "index.json", folder=folder)
    assert made.returncode == 0, made.stderr
    return Index.from_json(json.loads((folder / "index.json").read_text(encoding="utf-8")))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "index"


def unmade() -> Index:
    raise AssertionError("the index is made again")


def test_it_is_made_once_and_again_where_the_sources_have_changed(cache: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  tmp_path: Path) -> None:
    assert kept(lambda: EMPTY) == kept(unmade) == EMPTY
    sources = tmp_path / "sources"
    sources.mkdir()
    monkeypatch.setattr(storing, "SOURCES", sources)
    with pytest.raises(AssertionError, match="is made again"):
        kept(unmade)
    kept(lambda: EMPTY)
    (sources / "part.py").write_text("one")
    with pytest.raises(AssertionError, match="is made again"):
        kept(unmade)
    assert len(list(cache.iterdir())) == 2, "no draft is left"


def test_what_weft_did_not_write_is_neither_read_nor_replaced(cache: Path) -> None:
    kept(lambda: EMPTY)
    path, = cache.iterdir()
    text = path.read_text()
    for content in (text.replace("[]", "[1]", 1), "{", "[]", "", "[" * 100_000):
        path.write_text(content)
        assert read_kept(path) is None and kept(lambda: EMPTY) == EMPTY
        assert path.read_text() == content
    path.write_text(text)
    path.chmod(0o666)
    assert read_kept(path) is None, "others may have written it"
    path.chmod(0o600)
    assert read_kept(path) is not None
    os.rename(path, cache / "elsewhere")
    path.symlink_to(cache / "elsewhere")
    assert read_kept(path) is None


def test_without_a_cache_it_is_made_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "file"))
    assert kept(lambda: EMPTY) == EMPTY

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(storing, "cache_root", homeless)
    assert kept(lambda: EMPTY) == EMPTY


def test_a_selection_is_of_a_group_a_kind_or_all_parts(index: Index) -> None:
    assert index.select() == list(index.parts)
    assert {page.entry.group for page in index.select("mixer")} == {"mixer"}
    assert [page.entry.group for page in index.select("none")] == ["norm", "position", "rope_scaling"]
    assert [page.entry.kind for page in index.select("training")] == ["training"]


def test_an_unknown_name_is_answered_with_the_nearest(index: Index) -> None:
    with pytest.raises(InputError, match=r"called 'trainin'\. Did you mean 'training'\? Groups: .*settings"):
        index.select("trainin")


def test_plugins_are_looked_for_where_the_registry_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storing.ENTRY_POINTS == registry.ENTRY_POINTS
    monkeypatch.setattr(storing.importlib.metadata, "entry_points", lambda group: [group])
    assert storing.has_plugins()


def test_every_summary_is_a_whole_sentence(index: Index) -> None:
    """The first sentence of a docstring ends at a full stop, and so does what is cut at a product's point, before
    which there is a space."""
    found = [page.entry.summary for page in (*index.parts, *index.settings)]
    assert len(found) > 100
    assert not [each for each in found if not each.rstrip().endswith((".", ":")) or each.rstrip()[-2:-1].isspace()
                or any(each.count(begin) != each.count(end) for begin, end in ("()", "[]", "{}"))
                or each.count("`") % 2]
