"""The record of how often a text that was read is found, and how often a sound model is accused."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from typing import Any

from scipy import stats

RECIPE = Path(__file__).parents[2] / "recipes" / "seen_text"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RESULT = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


def test_false_alarms_are_no_more_than_the_level_allows_and_what_was_read_whole_is_found() -> None:
    for name, most in (("canaries", "20"), ("fresh text", "1")):
        sound, read = RESULT[name]["0"], RESULT[name][most]
        assert sound["models"] >= 200 and read["found"]["0.001"] >= 0.95 * read["models"]
        for level, count in sound["found"].items():
            assert stats.binomtest(count, sound["models"], float(level), "greater").pvalue > 0.01


def test_the_page_is_made_of_the_record() -> None:
    page = (RECIPE / "README.md").read_text(encoding="utf-8")
    assert page.split(MAKE["BEGIN"])[1].split(MAKE["END"])[0] == MAKE["tables"](RESULT)


def test_a_model_that_has_read_the_canaries_is_told_from_one_that_has_not() -> None:
    found = [" ".join(random.Random(at).choices(["one", "two", "three"], k=90)) for at in range(MAKE["TRAINING"])]
    assert MAKE["by_canaries"](found, 20, 0) <= 1e-3 < MAKE["by_canaries"](found, 0, 0)
