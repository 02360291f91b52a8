"""Measures of classifiers and of regressions against loops over the examples, written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from jaxtyping import Int64
from scipy import stats
from sklearn import metrics

from weft.tasks.classes import ClassCounts
from weft.tasks.classify import jackknife_error, pearson, spearman

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


@pytest.mark.parametrize("n_classes", [2, 3])
def test_measures_of_classes_are_those_of_scikit_learn_and_their_errors_the_jackknife(n_classes: int) -> None:
    true, predicted = drawn(n_classes)
    counts = ClassCounts(n_classes)
    counts.add(true, predicted)
    peers = {"accuracy": metrics.accuracy_score, "matthews": metrics.matthews_corrcoef,
             "macro_f1": lambda a, b: metrics.f1_score(a, b, average="macro"),
             **({"f1": metrics.f1_score} if n_classes == 2 else {})}
    found = counts.measures()
    assert set(found) == {*peers, *(f"{name}_standard_error" for name in peers)}
    alone = [ClassCounts(n_classes) for _ in range(N)]
    for i, each in enumerate(alone):
        each.add(np.delete(true, i), np.delete(predicted, i))
    for name, peer in peers.items():
        assert found[name] == pytest.approx(peer(true, predicted), rel=1e-12)
        left_out = [{"accuracy": each.accuracy, "matthews": each.matthews, "macro_f1": each.macro_f1,
                     "f1": each.f1}[name] for each in alone]
        # That of a share of n is sqrt(a (1 - a) / n), which the jackknife divides by n - 1 instead.
        scale = math.sqrt((N - 1) / N) if name == "accuracy" else 1.0
        wanted = scale * math.sqrt((N - 1) / N * sum((each - np.mean(left_out)) ** 2 for each in left_out))
        assert found[f"{name}_standard_error"] == pytest.approx(wanted, rel=1e-9)


def test_correlations_are_those_of_scipy_and_their_errors_those_of_repeated_samples() -> None:
    """Of normal values with correlation 0.6, the standard error of Pearson's is (1 - 0.36) / sqrt(n) in the limit; of
    50 samples of 80 the mean estimate is within 10 % of the deviation of 1,000 correlations, which is known to
    1/sqrt(2000) = 2 %; a single estimate varies by about a fifth."""
    stream = np.random.default_rng(3)
    true = stream.normal(size=(N, 1))
    predicted = np.round(true + stream.normal(size=(N, 1)), 1)
    assert pearson(true, predicted) == pytest.approx(stats.pearsonr(true[:, 0], predicted[:, 0]).statistic, rel=1e-12)
    assert spearman(true, predicted) == pytest.approx(stats.spearmanr(true[:, 0], predicted[:, 0]).statistic, rel=1e-12)
    alone = [stats.spearmanr(np.delete(true[:, 0], i), np.delete(predicted[:, 0], i)).statistic for i in range(N)]
    assert jackknife_error(spearman, true, predicted) == pytest.approx(
        math.sqrt((N - 1) ** 2 / N * np.var(alone, ddof=1)), rel=1e-9)
    x = stream.normal(size=(1000, 80, 1))
    y = 0.6 * x + 0.8 * stream.normal(size=x.shape)
    deviation = np.std([pearson(a, b) for a, b in zip(x, y, strict=True)])
    errors = np.mean([jackknife_error(pearson, a, b) for a, b in zip(x[:50], y[:50], strict=True)])
    assert errors == pytest.approx(deviation, rel=0.1)
    assert jackknife_error(pearson, true[:2], predicted[:2]) == 0.0


def test_many_examples_are_left_out_in_groups() -> None:
    stream = np.random.default_rng(4)
    true = stream.normal(size=(1000, 1))
    predicted = 0.6 * true + 0.8 * stream.normal(size=true.shape)
    rest = [np.arange(1000) % 200 != i for i in range(200)]
    alone = [stats.pearsonr(true[each, 0], predicted[each, 0]).statistic for each in rest]
    assert jackknife_error(pearson, true, predicted) == pytest.approx(
        math.sqrt(199 / 200 * sum((each - np.mean(alone)) ** 2 for each in alone)), rel=1e-9)
    assert jackknife_error(pearson, true, predicted) == pytest.approx((1 - 0.36) / math.sqrt(1000), rel=0.15)
