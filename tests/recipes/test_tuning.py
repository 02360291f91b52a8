"""The recorded table of learning rates, and the ways of choosing one that are played on it: of this study, played
right, and the reason for the default of `weft compare`."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from weft.comparison.mixtures import LEVEL, equal_means
from weft.comparison.study_settings import TrialSettings

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "tuning"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))
MODEL = {"rates": [0.1, 0.2, 0.3], "test": [[1.0, 1.2], [2.0, 2.1], [3.0, 3.3]],
         "tuning": {"0.25": [[9.0, 5.0], [8.0, 4.0], [7.0, 6.0]], "0.5": [[2.0, 3.0], [3.0, 2.0], [1.0, 1.0]],
                    "1": [[1.0, 2.1], [2.0, 2.0], [3.0, 3.0]]}}
"""Two attempts at three rates: a quarter chooses the third and the second of them."""


def test_the_record_is_of_the_study_that_stands_here() -> None:
    assert RECORD["study_sha256"] == MAKE["study_sha256"](), "the study has changed; run recipes/tuning/run.py"
    study = MAKE["read_study"](study=MAKE["STUDY"])
    assert set(RECORD["models"]) == set(study.models)
    for model in RECORD["models"].values():
        assert set(model["tuning"]) == {"0.25", "0.5", "1"}
        assert {np.array(each).shape for each in (*model["tuning"].values(), model["test"])} == {
            (study.trials.number, len(study.seeds))}


@pytest.mark.parametrize(("name", "cost", "chosen"), [
    ("trials of a quarter", 1.75, (2, 1)), ("trials of a half", 2.5, (2, 2)), ("trials of the whole", 3.0, (0, 1)),
    ("a quarter, the best two again", 2.75, (1, 1)), ("a half, the best two again", 3.5, (0, 1)),
    ("halving", 2.75, (2, 1)), ("a quarter, carried over", 1.75, (1, 1)), ("a half, carried over", 2.5, (2, 2))])
def test_a_way_chooses_what_it_says_and_costs_what_it_says(name: str, cost: float, chosen: tuple[int, int]) -> None:
    way = next(each for each in MAKE["WAYS"] if each.name == name)
    known = {float(share): np.array(values) for share, values in MODEL["tuning"].items()}
    assert way.cost(3) == cost
    assert way.choose(known, np.array([[0, 1]])).tolist() == [list(chosen)]


def test_what_is_played_is_students_interval_around_the_mean_of_the_way() -> None:
    """All four studies of two attempts at the little table, worked out by hand: figures 3.0 and 2.1."""
    found = MAKE["played"](MODEL, MAKE["WAYS"][0], 4000)
    assert (found["cost"], found["attempts"]) == (1.75, 5)
    assert found["lost"] == pytest.approx(2.55 - 1.1, abs=0.03)  # a share of 20,000 draws, a deviation of 0.45
    assert found["other"] == 1.0
    assert found["away"] == pytest.approx((1.45**2 + 0.45**2 / 5) ** 0.5, abs=0.03)
    whole = MAKE["played"](MODEL, MAKE["WAYS"][2], 4000)
    assert whole["attempts"] == 3
    assert whole["other"] == pytest.approx(0.5, abs=0.02)


def test_the_page_says_what_the_record_says_and_the_record_what_is_played() -> None:
    page = (RECIPE / "README.md").read_text(encoding="utf-8")
    assert page.split(MAKE["BEGIN"])[1].split(MAKE["END"])[0] == MAKE["tables"](RECORD)
    for name, ways in RECORD["ways"].items():
        for way in MAKE["WAYS"]:
            again = MAKE["played"](RECORD["models"][name], way, 4000)
            # Four standard errors of a share of 4,000 studies at its widest.
            assert again["covered"] == pytest.approx(ways[way.name]["covered"], abs=0.032), (name, way.name)
            assert again["cost"] == ways[way.name]["cost"]


def test_the_default_is_the_way_that_comes_nearest_for_its_cost() -> None:
    """With as many attempts as five with trials of a quarter cost, the mean of a study lies nearest to that of the best
    rate with trials of a half, of all ways that a study has; carried over, a rate is chosen in one attempt for
    others."""
    own = {name: np.mean([ways[name]["away_as_dear"] for ways in RECORD["ways"].values()])
           for name in ("trials of a quarter", "trials of a half", "trials of the whole")}
    assert min(own, key=lambda name: own[name]) == "trials of a half"
    assert TrialSettings().share == 0.5


STUDIES = [path for path in ROOT.glob("recipes/**/result.json") if "tied_sets" in json.loads(path.read_bytes())]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_a_recorded_study_states_the_length_of_its_trials(path: Path) -> None:
    """So that a change of the default does not become a claim of what was never run."""
    name = path.parent.name
    file = ROOT / "examples" / "six_ages.yaml" if name == "six_ages" else path.parent.with_name(f"{name}.yaml")
    stated, recorded = (yaml.safe_load(text)["trials"] for text in (file.read_text(encoding="utf-8"), json.loads(
        path.read_bytes())["study_config"]))
    assert stated.get("share") == recorded["share"] or TrialSettings(**stated).number == 1


def test_mixtures_are_told_by_the_rule_of_studies() -> None:
    draws = np.random.default_rng(3)
    values, high = draws.normal(size=(50, 5)), draws.random((50, 5)) < 0.4
    for row, mask, p in zip(values, high, MAKE["p_values"](values, high), strict=True):
        groups = [row[~mask].tolist(), row[mask].tolist()]
        assert p == pytest.approx(equal_means(groups) if all(groups) else 1.0, rel=1e-9)


@pytest.mark.parametrize("models", [1, 6])
def test_equal_rates_are_told_apart_no_oftener_than_is_said(models: int) -> None:
    # Three standard errors of 2,000 studies.
    assert MAKE["false_alarms"](models, 5, 2000) <= LEVEL + 3 * (LEVEL * (1 - LEVEL) / 2000) ** 0.5


def test_a_rare_rate_that_costs_much_breaks_intervals_and_is_told() -> None:
    """Five runs, one of ten with a rate that costs eight deviations: the interval holds the truth far less often than
    it says, and those studies that have such a run are told of it more often than not."""
    found = MAKE["mixture"](8, 0.1, 5, 4000)
    assert found["covered"] < 0.87 and found["told_of_mixed"] > 0.6
    none = MAKE["mixture"](0, 0.1, 5, 4000)
    assert none["covered"] == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 4000) ** 0.5)
    assert stats.binom.sf(round(none["told"] * 4000) - 1, 4000, LEVEL) > 0.001
