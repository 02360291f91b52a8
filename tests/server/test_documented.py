"""The page of the server has every field, as the records have them, and its commands are those of the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from weft.server.fields import REFUSED, ChatBody, CompletionBody, ResponseBody

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


def test_the_table_of_fields_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from serve_fields import with_fields

    assert with_fields(PAGE) == PAGE, "run docs/generate.py"
    monkeypatch.delitem(sys.modules, "serve_fields")


def test_every_field_is_honoured_without_effect_or_refused() -> None:
    for record in (CompletionBody, ChatBody, ResponseBody):
        assert not set(record.model_fields) & set(REFUSED)
        for name, field in record.model_fields.items():
            assert field.description, name
            assert f"`{field.alias or name}`" in PAGE
    assert all(f"| `{name}` | {why} |" in PAGE for name, why in REFUSED.items())
