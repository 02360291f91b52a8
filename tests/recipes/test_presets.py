"""The presets have the depths and rates that their recipe chose, by its protocol."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from weft.api.configs import own_presets, read_config

RECIPE = Path(__file__).parents[2] / "recipes" / "presets"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


def at(plain: Any, key: str) -> Any:
    """What stands under a dotted key."""
    for step in key.split("."):
        plain = plain[int(step)] if isinstance(plain, list) else plain[step]
    return plain


@pytest.mark.parametrize("preset", list(RECORD["presets"]))
def test_a_preset_has_the_values_that_lose_least_at_both_budgets(preset: str) -> None:
    found, plain = RECORD["presets"][preset], read_config(preset)
    assert found["preset_sha256"] == MAKE["preset_sha256"](preset), f"run recipes/presets/run.py {preset}"
    for key, value in MAKE["chosen"](preset, found["runs"]).items():
        assert at(plain, key) == value, f"{preset}: {key}"


def test_no_preset_is_far_behind_a_variant_of_its_own() -> None:
    """Less than a tenth of a nat at either budget: with two layers and the rate it had, the LSTM was 0.58 behind."""
    for preset, found in RECORD["presets"].items():
        candidates, lost = MAKE["candidates"](preset), MAKE["worse"](found["runs"])
        assert max(lost[candidates.index(MAKE["chosen"](preset, found["runs"]))]) < 0.1, preset


def test_the_best_in_the_sum_is_chosen_and_not_the_best_of_one_budget() -> None:
    """Three candidates: the best of each budget is far behind at the other, and the second of both is chosen; several
    seeds count by their mean."""
    runs = [{"1": [1.0, 1.2], "9": [3.0, 3.2]}, {"1": [1.3, 1.1], "9": [2.2, 2.0]}, {"1": [2.0, 2.0], "9": [2.0, 1.8]}]
    assert MAKE["worse"](runs) == [pytest.approx([0.0, 1.2]), pytest.approx([0.1, 0.2]), pytest.approx([0.9, 0.0])]
    rates = MAKE["candidates"]("convolution")
    assert MAKE["chosen"]("convolution", runs) == rates[1] == {"training.optimizer.lr": 0.003}


def test_the_page_says_what_the_record_says() -> None:
    before = (RECIPE / "README.md").read_text(encoding="utf-8")
    assert MAKE["page"](before, RECORD) == before, "run recipes/presets/run.py --page"
    known = set(MAKE["study"]()["presets"])
    assert known <= set(own_presets()) and set(RECORD["presets"]) <= known
    assert all(f"**{preset}**" in before or f"{preset}" in before.rpartition("Not run yet: ")[2] for preset in known)
