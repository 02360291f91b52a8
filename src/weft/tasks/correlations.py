"""Correlations of predicted values with the true ones, for regression."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def pearson(true: Float[np.ndarray, "n C"], predicted: Float[np.ndarray, "n C"]) -> float:
    """The linear correlation of each value over the examples, and the mean of these over the C values; 0 for a value
    that does not vary."""
    a, b = true - true.mean(0), predicted - predicted.mean(0)
    scale = np.sqrt((a * a).sum(0) * (b * b).sum(0))
    return float(np.divide((a * b).sum(0), scale, out=np.zeros_like(scale), where=scale > 0).mean())


def spearman(true: Float[np.ndarray, "n C"], predicted: Float[np.ndarray, "n C"]) -> float:
    """`pearson` of the ranks of each value, equal values sharing the mean of their ranks (Spearman 1904)."""
    return pearson(_ranks(true), _ranks(predicted))


def _ranks(values: Float[np.ndarray, "n C"]) -> Float[np.ndarray, "n C"]:
    ranks = np.empty(values.shape)
    for column in range(values.shape[1]):
        _, place, count = np.unique(values[:, column], return_inverse=True, return_counts=True)
        last = count.cumsum()  # the rank of the last of each group of equal values
        ranks[:, column] = (last - (count - 1) / 2)[place]
    return ranks
