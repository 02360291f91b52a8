"""Correlations of predicted values with the true ones, for regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

Correlation: TypeAlias = Callable[[np.ndarray, np.ndarray], float]
GROUPS = 200
"""Groups of examples that the jackknife leaves out one after the other. With more of them the ranks of many examples
take long to sort anew, and the error is hardly known better."""


def pearson(true: Float[np.ndarray, "n C"], predicted: Float[np.ndarray, "n C"]) -> float:
    """The linear correlation of each value over the examples, and the mean of these over the C values; 0 for a value
    that does not vary."""
    a, b = true - true.mean(0), predicted - predicted.mean(0)
    scale = np.sqrt((a * a).sum(0) * (b * b).sum(0))
    return float(np.divide((a * b).sum(0), scale, out=np.zeros_like(scale), where=scale > 0).mean())


def spearman(true: Float[np.ndarray, "n C"], predicted: Float[np.ndarray, "n C"]) -> float:
    """`pearson` of the ranks of each value, equal values sharing the mean of their ranks (Spearman 1904)."""
    return pearson(_ranks(true), _ranks(predicted))


def jackknife_error(correlation: Correlation, true: Float[np.ndarray, "n C"],
                    predicted: Float[np.ndarray, "n C"]) -> float:
    """The standard error of a correlation, by `error_of` from the correlations without the i-th of g groups of examples
    (Efron and Tibshirani 1993, equation 11.5; Shao and Tu 1995, section 2.3): each example is a group of its own up to
    `GROUPS` examples; of more, group i has every `GROUPS`-th from the i-th on. 0 for fewer than three examples."""
    groups = min(len(true), GROUPS)
    group = np.arange(len(true)) % groups
    return error_of([correlation(true[group != i], predicted[group != i]) for i in range(groups)] if groups > 2 else [])


def error_of(left_out: Sequence[float]) -> float:
    """The jackknife's standard error of a measure from its values m_i without the i-th of g groups of examples:
    sqrt((g - 1)/g sum (m_i - mean m)^2); 0 for fewer than three groups."""
    groups, found = len(left_out), np.array(left_out)
    if groups < 3:
        return 0.0
    return math.sqrt((groups - 1) / groups * float(((found - found.mean()) ** 2).sum()))


def _ranks(values: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    ranks = np.empty(values.shape)
    for column in range(values.shape[1]):
        _, place, count = np.unique(values[:, column], return_inverse=True, return_counts=True)
        last = count.cumsum()  # the rank of the last of each group of equal values
        ranks[:, column] = (last - (count - 1) / 2)[place]
    return ranks
