"""docs/parallel_table.md is what `make table-parallel` writes of its record, which has every mixer and every column; a
sample of it is measured here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallel.table.columns import COLUMNS
from parallel.table.measure import cells
from parallel.table.page import PAGE, RECORD, page
from parallel.table.subjects import mixers

SAMPLE = ("attention", "gru")
"""Whose state is handed on as keys, and in turn; `test_context` cuts rows of every mixer."""
BOUND = {"loss": 1e-12, "gradient": 1e-10, "signed": 1e-13}
"""Of a few steps; the numbers are some 1e-16, and 1e-14 of gradients."""
FOLLOWED = {"loss": 1e-8, "gradient": 1e-5, "signed": 1e-9}
"""Of fifty steps, of which each amplifies the rounding of those before, by up to six digits in loss and nine in
gradients where a norm of each head divides by a small number. A wrong share of one token in 48 is a hundredth."""


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def test_the_page_is_made_of_the_record(record: dict[str, Any]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(record), "run make table-parallel"


def test_the_record_has_every_mixer_and_column(record: dict[str, Any]) -> None:
    """Those that a run has not come to yet are named on the page."""
    assert sorted([*record["mixers"], *record["left"]]) == sorted(mixers()), "run make table-parallel"
    assert all(list(row) and set(row) == {column.name for column in COLUMNS} for row in record["mixers"].values())


def test_every_way_takes_the_course_of_one_process(record: dict[str, Any]) -> None:
    assert beyond(record["mixers"], FOLLOWED) == []


def test_only_cross_attention_and_what_says_so_have_no_numbers(record: dict[str, Any]) -> None:
    empty = {(mixer, column) for mixer, row in record["mixers"].items() for column, cell in row.items()
             if "why" in cell}
    assert {mixer for mixer, column in empty if column != "TP"} == {"cross_attention"}


def test_a_sample_takes_the_course_of_one_process() -> None:
    """`compile` is left to tests/integration/test_compile.py, where every mixer is traced."""
    found = cells(SAMPLE, (column for column in COLUMNS if column.name != "compile"), 3)
    assert all("why" not in cell for row in found.values() for cell in row.values())
    assert beyond(found, BOUND) == []


def beyond(found: dict[str, Any], bounds: dict[str, float]) -> list[tuple[str, str, str, float]]:
    """The numbers that are not within their bounds."""
    return [(mixer, column, name, cell[name]) for mixer, row in found.items() for column, cell in row.items()
            if "why" not in cell for name, bound in bounds.items() if not abs(cell[name]) <= bound]
