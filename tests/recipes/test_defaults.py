"""What recorded results owe to defaults and presets: neither changes behind a recipe's back."""

from __future__ import annotations

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What the script defines, and what it finds."""
    found = runpy.run_path(str(RECIPES / "defaults.py"))
    now, recipes = found["current"]()
    return {**found, "now": now, "recipes": recipes}


def test_no_default_and_no_preset_has_changed_since_the_recipes_were_run(made: dict[str, Any]) -> None:
    record = json.loads((RECIPES / "defaults.json").read_text(encoding="utf-8"))
    assert made["changed"](record, made["now"], made["recipes"]) == [], "recipes/defaults.py says what to do"


def test_a_changed_default_is_told_with_the_recipes_that_leave_it_out(made: dict[str, Any]) -> None:
    """The default of T5's bias, which the study of lengths alone leaves out; a value that a recipe writes owes nothing
    to its default, nor does a new field to what the record has."""
    field, std = "position t5.scaled", "EmbeddingSettings.std"
    before = copy.deepcopy(made["now"])
    before["fields"] |= {field: False, "mixer gone.width": 3}
    assert made["changed"](before, made["now"], made["recipes"]) == [f"{field} was False and is True: lengths"]
    del before["fields"][field]
    assert made["changed"](before, made["now"], made["recipes"]) == [f"{field} is not recorded yet"]
    assert made["recipes"][std] == {"key_value_bytes/mixers"}, "it measures bytes and times, and no trained model"


def test_a_study_of_presets_is_told_when_what_it_takes_from_them_changes(made: dict[str, Any]) -> None:
    """Of the README's study, which gives the LSTM a rate of its own, the depth is the preset's."""
    before = copy.deepcopy(made["now"])
    before["presets"]["six_ages"]["s4d"]["model"]["blocks"][0]["repeat"] = 9
    assert made["changed"](before, made["now"], made["recipes"]) == ["six_ages has other presets than it was run with"]
    rates = {name: plain["training"]["optimizer"]["lr"] for name, plain in made["now"]["presets"]["six_ages"].items()
             if "optimizer" in plain["training"]}
    assert rates["lstm"] == 0.04 and rates["s4d"] == 0.01, "as the study runs them"
