"""The page of the simulated ladders is that of its record, and a row of it comes out again."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "recipes" / "ladder_error_rates"


def test_the_page_is_that_of_the_record_and_keeps_its_promises() -> None:
    recipe = runpy.run_path(str(FOLDER / "run.py"))
    result = json.loads((FOLDER / "result.json").read_text(encoding="utf-8"))
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == recipe["page"](result)
    for row in result["rows"]:
        # Of 200 studies, 90 % would be met by an exact interval of 95 % but in two of a thousand.
        assert min(row[name] for name in ("floor", "exponent", "told beforehand", "turn", "saving")) >= 0.9
        assert row["equal models turn"] <= 0.05
        assert row["wrong law refused"] >= (0.85 if row["runs"] == 3 and row["deviation"] == 0.03 else 0.95), (
            "three runs that lie far apart say least")


def test_a_part_of_a_row_comes_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = runpy.run_path(str(FOLDER / "run.py"))
    recipe["simulated"].__globals__["STUDIES"] = 4
    found = recipe["simulated"](5, 0.01)
    assert found["turn"] == found["turn told"] == 1.0 and found["equal models turn"] == 0.0
