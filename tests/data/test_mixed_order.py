"""The order of a mixture: shares at every prefix, what happens at a cap, and the same rows from anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data.mixed_order import PERIOD, MixedOrder, Schedule
from weft.data.mixture import PILE

SHORT = 1 << 10
"""A period that a test can go through several times."""


def prefixes(source: np.ndarray, k: int) -> np.ndarray:
    """Rows of each source up to and with every row, [n, k]."""
    return (source[:, None] == np.arange(k)).cumsum(0)


@settings(max_examples=40, deadline=None)
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda shares: sum(shares) > 1e-3))
def test_every_prefix_has_its_shares_within_one_row(shares: list[float]) -> None:
    schedule = Schedule(shares, SHORT)
    source = schedule.rows(0, 2 * SHORT + 50).source
    n = np.arange(1, len(source) + 1)[:, None]
    assert schedule.each.sum() == SHORT
    assert np.abs(prefixes(source, len(shares)) - n * schedule.each / SHORT).max() < 1


def test_shares_are_rounded_to_less_than_a_tenth_of_a_percent() -> None:
    """Of The Pile's 22 parts, the smallest of which has 0.14 %."""
    weights = np.array(PILE.weights())
    whole = Schedule(weights.tolist()).each / PERIOD
    assert np.abs(whole / (weights / weights.sum()) - 1).max() < 1e-3
    assert np.abs(Schedule(weights.tolist()).counts(5000) - 5000 * weights / weights.sum()).max() < 1.01


def test_a_row_does_not_depend_on_those_asked_for_before() -> None:
    whole = MixedOrder([5, 3, 2], [60, None, 41], SHORT).rows(0, 3000)
    order = MixedOrder([5, 3, 2], [60, None, 41], SHORT)
    for first, last in ((2900, 2950), (0, 10), (110, 130), (1020, 1030), (55, 55)):
        part = order.rows(first, last)
        np.testing.assert_array_equal(part.source, whole.source[first:last])
        np.testing.assert_array_equal(part.number, whole.number[first:last])
    for n in (0, 1, 119, 120, 121, 500, 2999, 3000):
        np.testing.assert_array_equal(order.counts(n), np.bincount(whole.source[:n], minlength=3))
    for each in range(3):  # the rows of a source are numbered as they come
        np.testing.assert_array_equal(whole.number[whole.source == each], np.arange((whole.source == each).sum()))


def test_at_a_limit_the_others_share_what_follows() -> None:
    source = MixedOrder([0.5, 0.3, 0.2], [10, None, 7], SHORT).rows(0, 2000).source
    counts = prefixes(source, 3)
    assert counts[-1].tolist() == [10, 1983, 7]
    first = int(np.flatnonzero(counts[:, 0] == 10)[0])  # the last row of the first source
    assert 18 <= first <= 20
    later = counts[first + 1:first + 5] - counts[first]
    assert np.abs(later[:, 1] - np.arange(1, 5) * 0.6).max() < 1 and not later[:, 0].any()


def test_a_mixture_ends_with_its_last_source() -> None:
    order = MixedOrder([1, 1, 0], [5, 3, None], SHORT)
    assert order.total == 8 and np.bincount(order.rows(0, 8).source).tolist() == [5, 3]
    for asked in (lambda: order.rows(0, 9), lambda: order.counts(9)):
        with pytest.raises(DataError, match=r"every source has been read as often as it may be after 8 rows\. "
                                            r"\(in data\.sources\)|data\.sources"):
            asked()
