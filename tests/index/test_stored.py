"""The stored index is the registry's, and is read back as it was written."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest

from fresh import fresh
from index.writing import write_index
from weft.core import registry
from weft.core.errors import InputError
from weft.index import stored as storing
from weft.index.records import Index
from weft.index.stored import FILE, stored, written


def test_the_stored_index_is_that_of_the_registry(tmp_path: Path) -> None:
    made = fresh(write_index, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    kept = FILE.read_text(encoding="utf-8")
    differences = list(difflib.unified_diff(kept.splitlines(), made.stdout.splitlines(), "stored", "registry", n=0))
    assert not differences, "run `python docs/generate.py`, which writes it:\n" + "\n".join(differences[:20])


def test_it_is_read_as_it_was_written() -> None:
    assert written(stored()) == FILE.read_text(encoding="utf-8")
    assert Index.from_json(json.loads(written(stored()))) == stored()


def test_a_selection_is_of_a_group_a_kind_or_all_parts() -> None:
    index = stored()
    assert index.select() == list(index.parts)
    assert {page.entry.group for page in index.select("mixer")} == {"mixer"}
    assert [page.entry.group for page in index.select("none")] == ["norm", "position", "rope_scaling"]
    assert [page.entry.kind for page in index.select("training")] == ["training"]


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"called 'trainin'\. Did you mean 'training'\? Groups: .*settings"):
        stored().select("trainin")


def test_plugins_are_looked_for_where_the_registry_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storing.ENTRY_POINTS == registry.ENTRY_POINTS
    monkeypatch.setattr(storing.importlib.metadata, "entry_points", lambda group: [group])
    assert storing.has_plugins()


def test_every_summary_is_a_whole_sentence() -> None:
    """The first sentence of a docstring ends at a full stop, and so does what is cut at a product's point, before
    which there is a space."""
    def entries(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["summary"]] if isinstance(value.get("summary"), str) else []
            return own + [each for part in value.values() for each in entries(part)]
        return [each for part in value for each in entries(part)] if isinstance(value, list) else []

    found = entries(json.loads(FILE.read_text(encoding="utf-8")))
    assert len(found) > 100
    assert not [each for each in found if not each.rstrip().endswith((".", ":")) or each.rstrip()[-2:-1].isspace()
                or any(each.count(begin) != each.count(end) for begin, end in ("()", "[]", "{}"))
                or each.count("`") % 2]
