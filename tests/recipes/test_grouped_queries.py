"""The recorded study of averaged key and value heads: of the settings that stand here, its page made of it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "grouped_queries"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


def test_the_record_is_of_what_stands_here() -> None:
    assert RECORD["settings_sha256"] == MAKE["settings_sha256"](), "run recipes/grouped_queries/run.py"
    text = (RECIPE / "README.md").read_text(encoding="utf-8")
    assert f"{MAKE['BEGIN']}{MAKE['page'](RECORD)}{MAKE['END']}" in text, "run it without a folder"
    assert (RECIPE / "further.svg").read_text(encoding="utf-8") == MAKE["picture"](RECORD).alone()


def test_every_seed_has_every_number_of_heads_at_the_same_steps() -> None:
    stops = ["0", *(str(round(share * RECORD["steps"])) for share in MAKE["SHARES"])]
    assert len(RECORD["seeds"]) >= 3
    for seed in RECORD["seeds"]:
        assert list(seed) == [str(groups) for groups in MAKE["GROUPS"]]
        assert all(list(found) == stops for found in seed.values())


def test_averaging_costs_more_the_fewer_heads_are_left_and_training_on_wins_most_of_it_back() -> None:
    for seed in RECORD["seeds"]:
        first, last = ([seed[str(groups)][stop] for groups in MAKE["GROUPS"]] for stop in ("0", list(seed["8"])[-1]))
        assert last == sorted(last) and first[0] == min(first)
        for cost, left in zip(first[1:], last[1:], strict=True):
            assert left - last[0] < (cost - first[0]) / 3


@pytest.mark.parametrize(("gaps", "said"), [
    ([0.1, 0.11, 0.09], "told apart"), ([0.1, -0.1, 0.05], "not told apart"), ([0.1], "one seed tells nothing")])
def test_the_verdict_is_that_of_the_interval(gaps: list[float], said: str) -> None:
    """By hand: of three seeds the half of the interval is 4.303 standard errors."""
    seeds = [{"8": {"0": 2.0, "60": 1.5}, "2": {"0": 3.0, "60": 1.5 + gap}} for gap in gaps]
    text = MAKE["verdict"]({"seeds": seeds}, 2)
    assert f"({said}" in text and "averaging costs 1.000" in text
    if gaps == [0.1, 0.11, 0.09]:
        assert "60 steps later it is 0.100 ± 0.025 bits behind" in text and text.endswith("10% of the cost.")
