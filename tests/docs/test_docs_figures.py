"""The figures that the README quotes come from docs/figures.json, which ``make figures`` writes."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURES = json.loads((ROOT / "docs" / "figures.json").read_text(encoding="utf-8"))
AGAIN = "run `make figures` and paste what it prints into the README"


def test_the_configurations_are_those_that_were_measured() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "first_day.py"))
    assert {name: example["fingerprint"](name) for name in example["MODELS"]} == FIGURES["configurations"], AGAIN


def test_the_readme_quotes_what_was_printed() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n".join(FIGURES["printed"]).strip("\n") in readme, AGAIN
    assert f"torch {FIGURES['torch']}" in readme and FIGURES["date"] in readme, AGAIN
