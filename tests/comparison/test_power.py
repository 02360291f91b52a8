"""What a study can expect to show, and what that rests on."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from comparison.report.fixture import study as plain_study
from weft.comparison.power import Spread, detectable_in, reaches, spread_of, summary
from weft.comparison.student import detectable_difference, spread_interval
from weft.comparison.study import StudyConfig
from weft.core.config import parse


def study(**changes: Any) -> StudyConfig:
    return parse(StudyConfig, {"models": {"a": "lstm", "b": "s4d"}, "budget": {"kind": "tokens", "amount": 1000},
                               **changes})


@pytest.mark.parametrize("freedom", [1, 2, 4, 30, 200])
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_the_interval_of_a_spread_is_that_of_chi_square(freedom: int, confidence: float) -> None:
    tail = (1 - confidence) / 2
    expected = [0.1 * (freedom / stats.chi2.ppf(each, freedom)) ** 0.5 for each in (1 - tail, tail)]
    assert spread_interval(0.1, freedom, confidence) == pytest.approx(expected, rel=1e-9)


def test_before_any_run_a_difference_is_told_in_standard_deviations() -> None:
    found, basis = detectable_in(study(), 1, 1.0, None)
    assert [each.difference for each in found] == [None] * 3
    assert [each.spreads for each in found] == pytest.approx(
        [detectable_difference(1.0, runs, 0.95, 1, "welch") for runs in (3, 5, 10)])
    said = summary(found, basis, 3)
    assert said.startswith(f"standard deviations by runs of each model: {found[0].spreads:.2g} with 3 (this study), ")
    assert said.endswith("in standard deviations between the runs of a model. How large one is, is not known before "
                         "the runs: the report works the difference out from them. That is on the same text: from text "
                         "to text a difference varies too, by how much is not known before the runs, and as the test "
                         "counts both, what it finds is larger.")


def test_a_study_that_grows_takes_the_spread_from_the_runs_that_it_has() -> None:
    found, basis = detectable_in(study(test="paired", seeds=4), 1, 0.2, Spread(0.02, 4))
    assert [each.runs for each in found] == [3, 4, 5, 10]
    for each in found:
        assert each.difference == pytest.approx(detectable_difference(0.02, each.runs, 0.99, 1, "paired"))
    low, high = (0.02 * (4 / stats.chi2.ppf(tail, 4)) ** 0.5 for tail in (0.975, 0.025))
    assert f"between two models, run by run of 0.02 bits per byte ({low:.2g} to {high:.2g}), as those runs" in basis
    assert "the paired t test at level 0.01 / 1" in basis
    assert "(this study)" in summary(found, basis, 4)


def test_a_study_that_grows_counts_its_documents_too() -> None:
    known = Spread(0.02, 4, 0.01, 30.0)
    found, basis = detectable_in(study(test="paired"), 1, 1.0, known)
    assert [each.difference for each in found] == pytest.approx(
        [detectable_difference(0.02, each.runs, 0.95, 1, "paired", (0.01, 30.0)) for each in found])
    assert [each.spreads for each in found] == pytest.approx(
        [detectable_difference(1.0, each.runs, 0.95, 1, "paired") for each in found]), "of runs alone"
    assert basis.endswith(" With it goes the standard error of a difference from document to document, 0.01 bits per "
                          "byte in those runs.")
    stated, _ = detectable_in(study(test="paired", trials={"deviation": 0.04}), 1, 1.0, known)
    assert stated[0].difference == pytest.approx(detectable_difference(0.04, 3, 0.95, 1, "paired", (0.01, 30.0)))


def test_a_stated_deviation_comes_first_and_single_runs_show_nothing() -> None:
    found, basis = detectable_in(study(trials={"deviation": 0.02}), 1, 1.0, Spread(1.0, 4))
    assert found[0].difference == pytest.approx(detectable_difference(0.02, 3, 0.95, 1, "welch"))
    assert "0.02 bits per byte, which the study states" in basis
    single, _ = detectable_in(study(trials={"deviation": 0.02}, seeds=1), 1, 1.0, None)
    assert (single[0].runs, single[0].difference, single[0].spreads) == (1, None, None)


def test_every_number_of_runs_is_worked_out_again_from_the_runs() -> None:
    result = plain_study()
    spread = spread_of(result)
    assert spread is not None
    errors = [pair.document_error for pair in result.differences if "kneser" not in pair.first + pair.second]
    documents = (sum(each**2 for each in errors) / len(errors)) ** 0.5
    sizes = result.corpus.document_bytes
    assert len(errors) == 10 and spread.documents == pytest.approx(documents), "of trained models"
    assert spread.others == pytest.approx(sum(sizes) ** 2 / sum(each**2 for each in sizes) - 1)
    for each in reaches(result):
        assert each.found == pytest.approx(detectable_difference(spread.deviation, each.runs, 0.95, 15, "welch",
                                                                 (documents, spread.others)))
        alone = detectable_difference(spread.deviation, each.runs, 0.95, 15, "welch")
        assert each.found is not None and alone is not None and each.found > alone
