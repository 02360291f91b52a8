"""Counts of true and predicted classes, from which accuracy and F1 follow."""

from __future__ import annotations

from typing import final

import numpy as np
from jaxtyping import Int64


@final
class ClassCounts:
    """Counts over examples, for accuracy and F1.

    Args:
        n_classes: C.
    """

    def __init__(self, n_classes: int) -> None:
        self._true, self._predicted, self._both = (np.zeros(n_classes, dtype=np.int64) for _ in range(3))

    def add(self, true: Int64[np.ndarray, " B"], predicted: Int64[np.ndarray, " B"]) -> None:
        """Count more examples."""
        size = len(self._true)
        self._true += np.bincount(true, minlength=size)
        self._predicted += np.bincount(predicted, minlength=size)
        self._both += np.bincount(true[true == predicted], minlength=size)

    @property
    def accuracy(self) -> float:
        """Share of the examples whose class was predicted."""
        return float(self._both.sum() / self._true.sum())

    @property
    def macro_f1(self) -> float:
        """The mean of F1 = 2 both / (true + predicted) over the classes that occur among the true or predicted ones."""
        seen = self._true + self._predicted > 0
        return float((2 * self._both[seen] / (self._true + self._predicted)[seen]).mean())
