"""The order of a pair during training: where it changes, and whether the intervals say so."""

from __future__ import annotations

import pytest

from weft.comparison.course import at_share, crosses, order_of, words
from weft.comparison.results import CurvePoint
from weft.comparison.statistics import Interval
from weft.comparison.study_result import GapPoint


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
