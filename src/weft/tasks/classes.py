"""Counts of true and predicted classes, from which accuracy, F1 and Matthews' correlation follow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Int64

Measure: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
"""A measure of counts by class: of right predictions, of true classes and of predicted ones."""


class ClassCounts:
    """Counts over examples, for the measures of a classifier.

    Args:
        n_classes: C.
    """

    def __init__(self, n_classes: int) -> None:
        self._true, self._predicted, self._both = (np.zeros(n_classes, dtype=np.int64) for _ in range(3))
        self._pairs: Counter[tuple[int, int]] = Counter()

    def add(self, true: Int64[np.ndarray, " B"], predicted: Int64[np.ndarray, " B"]) -> None:
        """Count more examples."""
        size = len(self._true)
        self._true += np.bincount(true, minlength=size)
        self._predicted += np.bincount(predicted, minlength=size)
        self._both += np.bincount(true[true == predicted], minlength=size)
        self._pairs.update(zip(true.tolist(), predicted.tolist(), strict=True))

    @property
    def accuracy(self) -> float:
        """Share of the examples whose class was predicted."""
        return float(self._both.sum() / self._true.sum())

    @property
    def accuracy_error(self) -> float:
        """Standard error of the accuracy a of n independent examples: sqrt(a (1 - a) / n)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / int(self._true.sum()))

    @property
    def macro_f1(self) -> float:
        """The mean of F1 = 2 both / (true + predicted) over the classes that occur among the true or predicted ones."""
        return macro_f1(self._both, self._true, self._predicted)

    @property
    def macro_f1_error(self) -> float:
        """Standard error of `macro_f1`, by the jackknife."""
        return self._jackknife(macro_f1)

    @property
    def f1(self) -> float:
        """F1 of the last class, which is the positive one of two; 0 where it occurs nowhere."""
        return _f1(self._both, self._true, self._predicted)

    @property
    def f1_error(self) -> float:
        """Standard error of `f1`, by the jackknife."""
        return self._jackknife(_f1)

    @property
    def matthews(self) -> float:
        """The correlation of true and predicted classes (Matthews 1975; Gorodkin 2004, equation 8, for more than two
        classes); 0 where all true or all predicted classes are the same."""
        return _correlation(self._both, self._true, self._predicted)

    @property
    def matthews_error(self) -> float:
        """Standard error of `matthews`, by the jackknife."""
        return self._jackknife(_correlation)

    def _jackknife(self, measure: Measure) -> float:
        """sqrt((n - 1)/n sum (m_i - mean m)^2) over the measures m_i without example i, which are equal for examples
        with equal true and predicted classes."""
        values, weights = [], []
        for (true, predicted), count in self._pairs.items():
            both, *without = (each.copy() for each in (self._both, self._true, self._predicted))
            both[true] -= true == predicted
            without[0][true] -= 1
            without[1][predicted] -= 1
            values.append(measure(both, *without))
            weights.append(count)
        n, found, share = sum(weights), np.array(values), np.array(weights, dtype=np.float64)
        mean = (found * share).sum() / n
        return math.sqrt((n - 1) / n * float((share * (found - mean) ** 2).sum()))

    def measures(self) -> dict[str, float]:
        """Every measure by its name; F1 of one class only where there are two."""
        f1 = {"f1": self.f1, "f1_standard_error": self.f1_error} if len(self._true) == 2 else {}
        return {"accuracy": self.accuracy, "accuracy_standard_error": self.accuracy_error, "macro_f1": self.macro_f1,
                "macro_f1_standard_error": self.macro_f1_error, **f1, "matthews": self.matthews,
                "matthews_standard_error": self.matthews_error}


def _f1(both: Int64[np.ndarray, " C"], true: Int64[np.ndarray, " C"], predicted: Int64[np.ndarray, " C"]) -> float:
    found = int(true[-1] + predicted[-1])
    return float(2 * both[-1] / found) if found else 0.0


def macro_f1(both: Int64[np.ndarray, " C"], true: Int64[np.ndarray, " C"], predicted: Int64[np.ndarray, " C"]) -> float:
    """The mean of F1 = 2 both / (true + predicted) over the classes that occur among the true or predicted ones, from
    counts by class."""
    seen = true + predicted > 0
    return float((2 * both[seen] / (true + predicted)[seen]).mean()) if seen.any() else 0.0


def _correlation(both: Int64[np.ndarray, " C"], true: Int64[np.ndarray, " C"],
                 predicted: Int64[np.ndarray, " C"]) -> float:
    """(both n - sum t p) / sqrt((n^2 - sum t^2) (n^2 - sum p^2)), in whole numbers up to the quotient."""
    n, t, p = int(true.sum()), true.tolist(), predicted.tolist()
    covariance = int(both.sum()) * n - sum(a * b for a, b in zip(t, p, strict=True))
    spreads = (n * n - sum(a * a for a in t)) * (n * n - sum(b * b for b in p))
    return covariance / math.sqrt(spreads) if spreads > 0 else 0.0
