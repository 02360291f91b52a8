"""Measures of classifiers and of regressions against loops over the examples, written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from jaxtyping import Int64

from weft.tasks.classes import ClassCounts
from weft.tasks.correlations import pearson, spearman

N = 60


def drawn(n_classes: int) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """True classes, and predicted ones that agree with them about half of the time."""
    stream = np.random.default_rng(n_classes)
    true, other = stream.integers(n_classes, size=(2, N))
    return true, np.where(stream.random(N) < 0.4, true, other)


def correlation(true: np.ndarray, predicted: np.ndarray, n_classes: int) -> float:
    """Of indicator vectors of the classes: cov(x, y) / sqrt(cov(x, x) cov(y, y)), Gorodkin 2004, equation 8."""
    x, y = (np.eye(n_classes)[each] - np.eye(n_classes)[each].mean(0) for each in (true, predicted))
    return float((x * y).sum() / math.sqrt((x * x).sum() * (y * y).sum()))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_matthews_correlation_is_that_of_indicators(n_classes: int) -> None:
    true, predicted = drawn(n_classes)
    counts = ClassCounts(n_classes)
    counts.add(true[:20], predicted[:20])
    counts.add(true[20:], predicted[20:])
    assert counts.matthews == pytest.approx(correlation(true, predicted, n_classes), rel=1e-12)
    left_out = [correlation(np.delete(true, i), np.delete(predicted, i), n_classes) for i in range(N)]
    wanted = math.sqrt((N - 1) / N * sum((each - np.mean(left_out)) ** 2 for each in left_out))
    assert counts.matthews_error == pytest.approx(wanted, rel=1e-9)
    assert ("f1" in counts.measures()) == (n_classes == 2)


def test_matthews_of_two_classes_is_the_four_fold_formula() -> None:
    counts = ClassCounts(2)
    counts.add(np.array([1] * 9 + [0] * 7), np.array([1] * 6 + [0] * 3 + [1] * 2 + [0] * 5))
    tp, fn, fp, tn = 6, 3, 2, 5
    assert counts.matthews == pytest.approx((tp * tn - fp * fn) / math.sqrt(
        (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)), rel=1e-12)
    assert counts.f1 == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert counts.accuracy_error == pytest.approx(math.sqrt(11 / 16 * 5 / 16 / 16))


def test_one_class_alone_has_no_correlation() -> None:
    counts = ClassCounts(2)
    counts.add(np.array([0, 1, 1]), np.array([1, 1, 1]))
    assert (counts.matthews, counts.matthews_error) == (0.0, 0.0)


def test_pearson_and_spearman_by_their_definitions() -> None:
    stream = np.random.default_rng(1)
    true = stream.normal(size=(N, 2))
    predicted = np.round(true + stream.normal(size=(N, 2)), 1)  # with equal values among them
    assert len(np.unique(predicted[:, 0])) < N

    def linear(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.corrcoef(a, b)[0, 1])

    def rank(values: np.ndarray) -> np.ndarray:
        return np.array([(values < each).sum() + ((values == each).sum() + 1) / 2 for each in values])

    columns = range(2)
    assert pearson(true, predicted) == pytest.approx(np.mean([linear(true[:, c], predicted[:, c]) for c in columns]))
    assert spearman(true, predicted) == pytest.approx(
        np.mean([linear(rank(true[:, c]), rank(predicted[:, c])) for c in columns]))
    assert spearman(true, np.exp(true)) == pytest.approx(1.0) and pearson(true, np.ones_like(true)) == 0.0
