"""The table of measured families in the docs has every family; `make table` writes it, with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.families.family import Family, families

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in (DOCS / "families_table.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
RECORD = json.loads((DOCS / "families_table.json").read_text(encoding="utf-8"))
TOLERANCE = 5e-5


def test_the_table_has_a_row_for_every_family() -> None:
    assert [row[0] for row in ROWS[2:]] == list(families()), "run make table"
    assert ROWS[0] == ["family", "class", "models", "read", "write", "tokenizer", "largest difference"]


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_a_row_says_what_is_registered_and_measured(family: Family) -> None:
    row = next(row for row in ROWS if row[0] == family.name)
    assert row[2] == str(len(family.sizes)), "run make table"
    if family.native is None:
        assert row[1] == "none"
        return
    cases = RECORD["families"][family.native.model_type]
    assert row[1] == family.native.architecture
    assert all(0 <= case[way] < TOLERANCE for case in cases for way in ("read", "write"))
    assert row[5] == "carried" and all(case["tokenizer"] for case in cases)
    assert row[6] == f"{max(case[way] for case in cases for way in ('read', 'write')):.1e} ({len(cases)} cases)"


def test_the_page_is_in_the_table_of_contents() -> None:
    assert "\nfamilies_table\n" in (DOCS / "index.md").read_text(encoding="utf-8")
