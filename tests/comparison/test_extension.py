"""Learning curves beyond the budget: the law is found where it holds, and shown only where it foretold the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import curve_fit

from comparison.report.fixture import study
from weft.comparison.extension import FURTHEST, extended, fitted
from weft.comparison.results import CurvePoint, StudyModel

TOKENS = 1_000_000


def entry_of(bits: Callable[[float], float], *, runs: int = 3, points: int = 10, noise: float = 0.0) -> StudyModel:
    """A model whose runs' curves follow a function of the share of the budget."""
    draws, made = np.random.default_rng(0), study().entries[0]
    curves = [tuple(CurvePoint(round(100 * share), round(TOKENS * share), 0.0, share,
                               bits(share) + noise * draws.standard_normal(), 0.0)
                    for share in np.arange(1, points + 1) / points) for _ in range(runs)]
    return dataclasses.replace(made, runs=tuple(dataclasses.replace(made.runs[0], index=index, curve=curve)
                                                for index, curve in enumerate(curves)))


def test_a_power_law_is_found_and_followed_to_four_budgets() -> None:
    found = extended(entry_of(lambda share: 1.5 + 0.4 * share**-0.5, noise=0.001), 0.95)
    assert found.verdict == "fits"
    assert found.exponent == pytest.approx(0.5, rel=0.1) and found.floor == pytest.approx(1.5, abs=0.05)
    last = found.points[-1]
    assert last.tokens == pytest.approx(FURTHEST * TOKENS)
    assert last.low <= 1.5 + 0.4 * FURTHEST**-0.5 <= last.high
    assert last.mean == pytest.approx(1.7, abs=0.02)
    assert last.high - last.low > found.points[1].high - found.points[1].low > 0, "the interval widens"


def test_the_fit_is_that_of_an_independent_least_squares() -> None:
    draws = np.random.default_rng(1)
    share = np.arange(1, 13) / 12
    bits = 1.2 + 0.7 * share**-0.35 + 0.005 * draws.standard_normal(12)
    law = fitted(share, bits[None])
    expected, _ = curve_fit(lambda x, floor, scale, power: floor + scale * x**-power, share, bits, p0=(1.0, 1.0, 0.5),
                            bounds=(0, np.inf))
    # The exponent comes from a grid 3 % apart, so the curve lies off by a fifth of the noise at most.
    assert law.at(share)[0] == pytest.approx(expected[0] + expected[1] * share ** -expected[2], abs=1e-3)


def test_a_curve_that_falls_off_at_the_end_is_not_extended() -> None:
    """As a schedule's last part makes it."""
    found = extended(entry_of(lambda share: 1.5 + 0.4 * share**-0.5 - 0.2 * (share > 0.75), noise=0.001), 0.95)
    assert found.verdict == "missed" and found.points == ()
    assert found.said is not None and found.ended is not None and found.ended < found.said.low


def test_few_checkpoints_and_single_figures_are_not_extended() -> None:
    assert extended(entry_of(lambda share: 2 - share, points=4), 0.95).verdict == "few"
    counted = next(entry for entry in study().entries if not entry.trainable)
    assert extended(counted, 0.95).verdict == "few"


def test_one_run_has_an_interval_of_what_scatters_around_its_law() -> None:
    found = extended(entry_of(lambda share: 1.5 + 0.4 * share**-0.5, runs=1, noise=0.002), 0.95)
    assert found.verdict == "fits" and found.points[-1].high > found.points[-1].low


def test_a_last_checkpoint_right_behind_another_counts_once() -> None:
    entry = entry_of(lambda share: 1.5 + 0.4 * share**-0.5, noise=0.001)
    doubled = dataclasses.replace(entry, runs=tuple(dataclasses.replace(run, curve=(
        *run.curve, dataclasses.replace(run.curve[-1], tokens=TOKENS + 10))) for run in entry.runs))
    assert extended(doubled, 0.95).verdict == "fits"
