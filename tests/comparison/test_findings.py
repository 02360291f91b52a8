"""Sentences that are worked out from a result: what varied, which doubt is larger, what pairing does, and where the
order of a pair changes during training."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from scipy import stats

from comparison.entries import entry, result_of
from comparison.report.fixture import study
from weft.comparison.findings import (
    doubts,
    larger_doubt,
    order_of,
    pairing_effect,
    rates_differ,
    varied,
    words,
)
from weft.comparison.power import reached, reaches
from weft.comparison.results import CurvePoint, RunResult, at_share
from weft.comparison.statistics import Interval
from weft.comparison.student import SeedTest, detectable_difference
from weft.comparison.study_result import Detectable, GapPoint, StudyResult
from weft.comparison.verdict import crosses

TESTS: tuple[SeedTest, ...] = ("welch", "paired")


OWN = np.array([[1, -1, 1, -1, 0], [1, 1, -1, -1, 0], [1, -1, -1, 1, 0]])
"""Of five runs of three models: no two rows go together."""


def together(shared: float, own: float, test: SeedTest) -> StudyResult:
    """Three models with five runs, whose nats vary by what runs of one number share and by what is their own."""
    orders = shared * np.array([-2, -1, 0, 1, 2])
    text = np.random.default_rng(0).normal(100, 1, 40)
    return result_of([entry(name, [text + place + orders[index] + own * OWN[place, index] for index in range(5)])
                      for place, name in enumerate("abc")], test)


def changed(result: StudyResult, **fields: object) -> StudyResult:
    """With other values in every run."""
    def of(run: RunResult) -> RunResult:
        return dataclasses.replace(run, **fields)  # type: ignore[arg-type]

    return dataclasses.replace(result, entries=tuple(dataclasses.replace(each, runs=tuple(map(of, each.runs)))
                                                     for each in result.entries))


@pytest.mark.parametrize("test", TESTS)
def test_pairing_gains_where_runs_go_together(test: SeedTest) -> None:
    said = pairing_effect(together(1.0, 0.05, test))
    assert said is not None and said.endswith("gained precision.")
    lowest = re.findall(r"correlate by (\d\.\d\d)", said)
    assert len(lowest) == 1 and float(lowest[0]) > 0.97
    assert ("Pairing made" in said) == (test == "paired")


def test_a_correlation_below_zero_has_a_true_minus_sign() -> None:
    said = pairing_effect(together(0.3, 1.0, "welch"))
    assert said is not None and re.search(r"correlate by \u22120\.\d\d to 0\.\d\d \(median \u22120\.\d\d\)", said)


@pytest.mark.parametrize("test", TESTS)
def test_pairing_loses_degrees_of_freedom_where_they_do_not(test: SeedTest) -> None:
    said = pairing_effect(together(0.0, 1.0, test))
    assert said is not None and said.endswith("lost more in degrees of freedom than it took from the spread.")
    # Of the same spread, with four degrees of freedom in place of eight: 2.776 / 2.306.
    assert "correlate by 0.00. " in said and " 1.2 times as wide" in said
    assert ("would have been" in said) == (test == "welch")
    assert said.startswith(f"The test of runs is {'Welch' if test == 'welch' else 'the t test of runs paired'}")


@pytest.mark.parametrize("test", TESTS)
def test_pairing_with_runs_that_are_all_the_same_changes_nothing(test: SeedTest) -> None:
    text = np.random.default_rng(0).normal(100, 1, 40)
    varied = entry("trained", [text + index for index in range(5)])
    counted = [entry(name, [text] * 5) for name in ("ngram", "counts")]
    said = pairing_effect(result_of([varied, *counted], test))
    assert said is not None and " 1 times as wide" in said
    assert said.endswith("neither gained nor lost precision in the middle of the pairs.")


def test_two_runs_have_no_correlation_and_one_has_no_pairing() -> None:
    two = pairing_effect(study(2, 2))
    assert two is not None and "correlate" not in two
    assert pairing_effect(study(2, 1)) is None


def test_the_larger_doubt_is_that_of_the_larger_standard_error() -> None:
    pair = study().differences[0]
    assert larger_doubt(dataclasses.replace(pair, seed_error=0.02, document_error=0.01)) == "runs"
    assert larger_doubt(dataclasses.replace(pair, seed_error=0.01, document_error=0.02)) == "documents"
    assert larger_doubt(dataclasses.replace(pair, seed_error=None, document_error=0.02)) is None
    assert larger_doubt(dataclasses.replace(pair, seed_error=0.02, document_error=0.02)) is None
    assert doubts(study(seeds=1)) is None


def test_the_span_of_both_errors_is_told() -> None:
    result = study(2)
    pair = dataclasses.replace(result.differences[0], seed_error=0.0021, document_error=0.0043)
    assert doubts(dataclasses.replace(result, differences=(pair,))) == (
        "The standard error of a difference of two means is 0.0021 bits per byte from run to run and 0.0043 from "
        "document to document of the test text. Documents weigh more in every pair: a longer test text would tell more "
        "than more runs.")


def test_only_what_varied_is_said_to_vary() -> None:
    assert varied(study(seeds=1)) is None
    begins = "From run to run of a model vary "
    order = varied(changed(study(2), seed=0))
    assert order is not None and order.startswith(f"{begins}the order of the data and the choice of the learning rate")
    weights = varied(changed(study(2), order_seed=0, trials=()))
    assert weights is not None and weights.startswith(f"{begins}the initial weights and dropout, and the intervals")
    assert weights.endswith("No learning rate was tried for transformer and s4d, so its choice is in no interval.")
    assert varied(changed(study(2), seed=0, order_seed=0, trials=())) == (
        "Nothing varies from run to run of a model but rounding. No learning rate was tried for transformer and s4d, "
        "so its choice is in no interval.")


def test_a_counted_model_varies_by_what_it_reads() -> None:
    result = study()
    last = result.entries[5]
    other = dataclasses.replace(last, runs=tuple(dataclasses.replace(run, bits_per_byte=2.0 + run.index)
                                                 for run in last.runs))
    said = varied(dataclasses.replace(result, entries=(*result.entries[:5], other)))
    assert said is not None
    assert said.endswith("kneser-ney-5 is counted, and what varies is which part of the text it reads.")


def test_rates_that_all_runs_share_are_not_said_to_differ() -> None:
    assert rates_differ(study(1)) is None
    assert str(rates_differ(study(2))).startswith("Runs chose different learning rates in s4d (0.001 in 1 and 0.003 in "
                                                  "2). The runs of s4d are a mixture by it, ")


def test_what_can_be_shown_is_not_known_without_a_second_model_or_run() -> None:
    assert [each.critical for each in reaches(study(1))] == [None, None, None]
    single = reaches(dataclasses.replace(study(2), detectable=(Detectable(1, None), Detectable(3, 0.1))))
    assert [each.critical is None for each in single] == [True, False]
    assert [each.difference for each in single] == [None, 0.1]


@pytest.mark.parametrize(("gaps", "expected"), [
    ([(-0.3, -0.1), (0.1, 0.2)], True),
    ([(-0.3, 0.1), (0.1, 0.2)], False),
    ([(-0.3, -0.1), (-0.1, 0.2)], False),
    ([(0.3, 0.5), (0.1, 0.2)], False),
    ([], False)])
def test_the_order_crosses_only_beyond_the_intervals(gaps: list[tuple[float, float]], expected: bool) -> None:
    assert crosses([Interval((low + high) / 2, low, high) for low, high in gaps]) is expected


def test_single_runs_never_cross() -> None:
    assert not crosses([Interval(-1.0, None, None), Interval(1.0, None, None)])


@pytest.mark.parametrize(("means", "half", "expected"), [
    ([-0.3, -0.2, -0.1], 0.01, "holds from 10% on"),
    ([-0.3, 0.2, 0.1], 0.01, "changes between 10% and 20%"),
    ([-0.3, 0.2, 0.1], 0.15, "means cross between 10% and 20%, undecided at the end"),
    ([0.1, -0.2, 0.3], 0.01, "changes between 20% and 30%"),
    ([-0.1, 0.0, 0.1], 0.01, "changes between 20% and 30%"),
    ([0.0, 0.0, 0.0], 0.0, "holds from 10% on"),
    ([-0.1, 0.2, 0.3], 0.15, "means cross between 10% and 20%, undecided before"),
    ([0.1], 0.0, "not known"),
    ([], 0.0, "not known")])
def test_the_order_in_words(means: list[float], half: float, expected: str) -> None:
    gaps = [GapPoint((place + 1) / 10, Interval(mean, mean - half, mean + half)) for place, mean in enumerate(means)]
    assert words(order_of(gaps)) == expected


def test_a_curve_between_its_points() -> None:
    curve = [CurvePoint(step, step, 0.0, 0.0, bits, 0.0) for step, bits in ((4, 3.0), (8, 2.0))]
    assert [at_share(curve, share) for share in (0.1, 0.5, 0.75, 1.0)] == [None, 3.0, 2.5, 2.0]
    assert at_share([], 1.0) is None


@pytest.mark.parametrize("test", TESTS)
def test_what_a_study_finds_is_worked_out_again_from_the_spread_of_its_runs(test: SeedTest) -> None:
    """Before the runs nothing is known of it."""
    result = together(0.0, 1.0, test)
    values = np.array([[run.bits_per_byte or 0.0 for run in each.finished] for each in result.entries])
    spreads = ([np.var(values[a] - values[b], ddof=1) for a, b in ((0, 1), (0, 2), (1, 2))] if test == "paired" else
               values.var(axis=1, ddof=1))
    sizes = np.array(result.corpus.document_bytes)
    documents, others = np.mean([pair.document_error**2 for pair in result.differences]), (
        sizes.sum() ** 2 / (sizes**2).sum() - 1)
    expected = detectable_difference(float(np.sqrt(np.mean(spreads))), 5, 0.95, 3, test,
                                     (float(np.sqrt(documents)), float(others)))
    found = reached(result)
    assert found is not None and found.mean == pytest.approx(expected)
    runs = np.mean(spreads) / 5 * (1 if test == "paired" else 2)
    freedom = (runs + documents) ** 2 / (runs**2 / (4 * 2 if test == "paired" else 4 * 3) + documents**2 / others)
    bounds = [expected * np.sqrt(freedom / stats.chi2.ppf(tail, freedom)) for tail in (0.975, 0.025)]
    assert (found.low, found.high) == pytest.approx(bounds)
    twice = reached(together(0.0, 2.0, test))
    assert twice is not None and twice.mean == pytest.approx(2 * found.mean, rel=1e-6)
    alone = dataclasses.replace(result, seeds=1, entries=tuple(
        dataclasses.replace(each, runs=each.runs[:1]) for each in result.entries))
    assert reached(alone) is None
