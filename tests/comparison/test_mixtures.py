"""Runs of a model that differ by the learning rates that their attempts chose: what is told of them, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from comparison.entries import CLUSTER, entry, result_of
from comparison.report.fixture import study
from weft.comparison.findings import rates_differ
from weft.comparison.mixtures import LEVEL, by_rate, equal_means, mixtures
from weft.comparison.protocol import notes_of
from weft.comparison.results import StudyModel
from weft.comparison.study import StudyConfig
from weft.core.config import parse


def model(name: str, runs: Sequence[tuple[float, float]]) -> StudyModel:
    """A model with runs of these learning rates and bits per byte."""
    nats = [np.full(4, bits * CLUSTER * np.log(2)) for _, bits in runs]
    made = entry(name, nats)
    return dataclasses.replace(made, runs=tuple(dataclasses.replace(each, lr=rate) for each, (rate, _) in
                                                zip(made.runs, runs, strict=True)))


SPLIT = model("split", [(0.1, 2.00), (0.1, 2.01), (0.1, 1.99), (0.1, 2.02), (0.3, 2.5)])
CLOSE = model("close", [(0.1, 2.00), (0.1, 2.01), (0.1, 1.99), (0.1, 2.02), (0.3, 2.03)])


def test_the_p_value_is_that_of_the_analysis_of_variance() -> None:
    draws = np.random.default_rng(0)
    for sizes in ((1, 4), (2, 3), (1, 2, 2), (5, 5, 10)):
        groups = [draws.normal(place * 0.3, 1, size).tolist() for place, size in enumerate(sizes)]
        assert equal_means(groups) == pytest.approx(stats.f_oneway(*groups).pvalue, rel=1e-9), sizes
    assert equal_means([[1.0, 1.0], [1.0]]) == 1.0
    assert equal_means([[1.0, 1.0], [2.0]]) == 0.0


def test_a_rare_rate_that_costs_much_is_told_with_what_follows() -> None:
    found, = mixtures([SPLIT, CLOSE])
    assert (found.name, [(rate, runs) for rate, runs, _ in found.means]) == ("split", [(0.1, 4), (0.3, 1)])
    said = found.words()
    assert said.startswith("split: the runs are a mixture. Attempts chose different learning rates (0.1 in 4, mean "
                           "2.005, 0.3 in 1, mean 2.500), and runs differ by the rate more than runs of one rate do (p")
    assert "not to be trusted" in said and "trials.share" in said and "more seeds" in said


def test_the_notes_of_a_result_say_it() -> None:
    config = parse(StudyConfig, {"models": {"split": "lstm", "close": "s4d"}, "length": {"steps": 1}})
    notes = notes_of(config, [], [SPLIT, CLOSE], None, study(1).corpus, [])
    assert [note for note in notes if "mixture" in note] == [mixtures([SPLIT, CLOSE])[0].words()]


def test_what_cannot_be_compared_is_not_tested() -> None:
    assert by_rate(model("one rate", [(0.1, 2.0), (0.1, 2.5)])) == {}
    assert by_rate(model("all differ", [(0.1, 2.0), (0.2, 2.5), (0.3, 9.0)])) == {}
    three = model("three", [(0.1, 2.00), (0.1, 2.01), (0.3, 2.05)])  # two runs say little of how far runs lie apart
    assert len(by_rate(three)) == 2 and mixtures([three]) == ()


def test_a_report_says_whose_interval_is_not_to_be_trusted() -> None:
    said = rates_differ(result_of([SPLIT, CLOSE]))
    assert said == ("Runs chose different learning rates in split (0.1 in 4 and 0.3 in 1) and close (0.1 in 4 and 0.3 "
                    "in 1). The runs of split are a mixture by it, far beyond the spread of runs of one rate, so that "
                    "the interval of its mean and what is tested with it are not to be trusted.")
    assert "mixture" not in str(rates_differ(result_of([CLOSE])))


def test_equal_rates_are_told_apart_as_seldom_as_is_said() -> None:
    """Six models of five runs, three of each kind of split: at most one study of twenty with any alarm."""
    draws, studies = np.random.default_rng(1).normal(2, 0.02, (2000, 6, 5)), 0
    rates = [[0.1] * 4 + [0.3], [0.1] * 3 + [0.3] * 2, [0.1, 0.1, 0.2, 0.2, 0.3]] * 2
    for found in draws:
        values = [equal_means([[bits for bits, own in zip(runs, chosen, strict=True) if own == rate]
                               for rate in sorted(set(chosen))]) for runs, chosen in zip(found, rates, strict=True)]
        studies += min(values) * len(values) <= LEVEL
    assert studies / 2000 <= 0.05 + 3 * 0.0049  # three standard errors of a share of 0.05 of 2,000
