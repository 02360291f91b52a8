"""The simulated studies of equal models: the rule is that of `weft compare`, keeps what it promises, and the others
do not."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.comparison.statistics import Estimate, Interval, combined_test, equivalence_p, holm

RECIPE = Path(__file__).parents[2] / "recipes" / "error_rates"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("seeds", "documents", "freedom"), [(0.04, 0.01, 2.0), (0.01, 0.04, 7.3), (1e-8, 1.0, 4.0)])
def test_the_simulated_rule_is_that_of_studies(seeds: float, documents: float, freedom: float) -> None:
    found = MAKE["p_values"](np.array([0.5]), np.array([seeds]), np.array([documents]), np.array([freedom]), 49.0)
    none = Interval(0.5, None, None)
    expected = combined_test(Estimate(none, seeds**0.5, None, freedom), Estimate(none, documents**0.5, None, 49.0),
                             0.95)
    assert found["shares"][0] == pytest.approx(expected.p_value, rel=1e-9)


@pytest.mark.parametrize(("difference", "margin"), [(0.5, 0.8), (-0.2, 0.8), (0.9, 0.8)])
def test_the_simulated_equivalence_is_that_of_studies(difference: float, margin: float) -> None:
    found = MAKE["p_equivalent"](*(np.array([each]) for each in (difference, 0.04, 0.01, 2.0)), margin)
    mean = Interval(difference, None, None)
    expected = equivalence_p(Estimate(mean, 0.2, None, 2.0), Estimate(mean, 0.1, None, 49.0), margin)
    assert found[0] == pytest.approx(expected, rel=1e-9)


def test_the_simulated_correction_is_that_of_studies() -> None:
    p = np.random.default_rng(0).uniform(0, 0.05, (50, 6)) ** 2 * 24
    expected = [[each is not None and each <= 0.05 for each in holm(row)] for row in p.tolist()]
    assert MAKE["rejected"](p).tolist() == expected and 50 < np.sum(expected) < 250


@pytest.mark.parametrize("test", ["welch", "paired"])
@pytest.mark.parametrize("models", [2, 6])
@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_models_that_differ_by_the_margin_are_called_as_good_no_oftener_than_is_said(
        test: str, models: int, ratio: float) -> None:
    """Three standard errors of 2,000 studies above 5 %, and no rule that hardly says it of any."""
    found = MAKE["wrong_equivalences"](models, 10, ratio, test, 2_000, 7)
    assert found["3"] <= found["30"] <= 0.05 + 3 * (0.05 * 0.95 / 2_000) ** 0.5
    assert found["30"] > 0.025


def test_the_record_of_equivalence_keeps_its_promise() -> None:
    found = RECORD["equivalent"]
    assert {(each["test"], each["models"], each["runs"], each["ratio"]) for each in found} == {
        (test, models, runs, ratio) for test in ("welch", "paired") for models in MAKE["EQUIVALENT"]
        for runs in MAKE["RUNS"] for ratio in MAKE["RATIOS"]}
    for each in found:
        # Of 120 cells some lie three standard errors out by chance.
        assert max(each["3"], each["30"]) <= 0.05 + 4 * (0.05 * 0.95 / MAKE["EQUIVALENT"][each["models"]]) ** 0.5


@pytest.mark.parametrize("test", ["welch", "paired"])
@pytest.mark.parametrize("models", [2, 6])
@pytest.mark.parametrize("runs", [3, 10])
def test_equal_models_are_told_apart_no_oftener_than_is_said(test: str, models: int, runs: int) -> None:
    """Three standard errors of 2,000 studies above 5%, at the ratios where the other two rules are at their worst."""
    found = [MAKE["wrong_studies"](models, runs, ratio, test, 2_000, 11) for ratio in (1.0, 4.0)]
    assert max(each["shares"] for each in found) <= 0.05 + 3 * (0.05 * 0.95 / 2_000) ** 0.5
    if runs == 10:
        assert found[0]["larger"] > 0.08, "the larger of two p-values is no test of both"
    elif models == 6 and test == "paired":
        assert found[1]["satterthwaite"] > 0.2, "nor are Satterthwaite's degrees of freedom with three runs"


@pytest.mark.parametrize("test", ["welch", "paired"])
@pytest.mark.parametrize("models", [2, 6])
@pytest.mark.parametrize("looks", list(MAKE["GROWING"]))
def test_growing_studies_tell_equal_models_apart_no_oftener_than_is_said(test: str, models: int, looks: str) -> None:
    """Three standard errors of 1,500 studies above 5 %, of planned looks, where runs weigh more and looks differ most;
    looks that were not planned have a bound of their own."""
    found = MAKE["wrong_growing"](models, MAKE["GROWING"][looks], 4.0, test, 1_500, 3)
    assert found["planned"] <= 0.05 + 3 * (0.05 * 0.95 / 1_500) ** 0.5
    assert found["counted"] <= 0.05 * sum(MAKE["shares_of"](MAKE["GROWING"][looks], 3))
    assert found["uncounted"] > max(found["planned"], found["counted"])


def test_the_record_of_growing_studies_keeps_its_promise() -> None:
    found = RECORD["growing"]
    assert {(each["models"], each["looks"]) for each in found} == {
        (models, looks) for models in (2, 6, 12) for looks in MAKE["GROWING"]}
    # The fewest studies of a cell are 1,500, whose standard error is 0.6 %.
    assert max(each["planned"] for each in found) <= 0.05 < max(each["uncounted"] for each in found) - 0.15
    assert max(each["counted"] for each in found) <= 0.06


def test_the_record_keeps_the_promise_and_the_page_is_made_of_it() -> None:
    assert len(RECORD["cells"]) == 2 * len(MAKE["MODELS"]) * len(MAKE["RUNS"]) * len(MAKE["RATIOS"])
    for cell in RECORD["cells"]:
        count = RECORD["studies"][str(cell["models"])]
        # Of 120 cells some lie three standard errors out by chance.
        assert cell["shares"] <= 0.05 + 4 * (0.05 * 0.95 / count) ** 0.5
    # Three standard errors; the quantiles of 400 draws cost half a percent, as in the tests of the bootstrap.
    assert RECORD["covered"]["effective"] >= 0.95 - 3 * (0.05 * 0.95 / RECORD["repetitions"]) ** 0.5 - 0.005
    assert RECORD["covered"]["effective"] > RECORD["covered"]["number"]
    assert MAKE["table"](RECORD) in (RECIPE / "README.md").read_text(encoding="utf-8")
