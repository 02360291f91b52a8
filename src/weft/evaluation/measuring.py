"""Evaluation mode, batches and sums, for all measures on held-out examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.errors import DataError, FailedError
from weft.core.model import Model
from weft.decoding.mode import device_of, evaluation_mode

T = TypeVar("T")


@contextmanager
def evaluating(model: Model) -> Iterator[torch.device]:
    """Run the block with the model in evaluation mode and without gradients; yields the model's device."""
    # Not inference_mode: tensors that a layer caches here must be usable in a later backward pass.
    with evaluation_mode(model), torch.no_grad():
        yield device_of(model)


def in_batches(size: int, rows: int) -> list[Int64[np.ndarray, " B"]]:
    """The indices below ``size`` in order, in arrays of at most ``rows``."""
    return [np.arange(first, min(first + rows, size)) for first in range(0, size, rows)]


def spread(batches: Sequence[T], count: int | None) -> list[T]:
    """``count`` of the batches, spread evenly over them; None: all. Raises `DataError`: ``count`` is below 1."""
    if count is None or count >= len(batches):
        return list(batches)
    if count < 1:
        raise DataError(f"must be at least 1, received {count}.", where="batches",
                        remedy="Give 1 or more, or leave it out.")
    return [batches[place] for place in np.linspace(0, len(batches) - 1, count).round().astype(int).tolist()]


def finite(total: Tensor, where: str) -> float:
    """A sum over a batch as a Python float. Raises `FailedError`: the sum is NaN."""
    value = float(total)
    if math.isnan(value):
        raise FailedError("the model gives NaN.", where=where,
                          remedy="Check the checkpoint with weft check, or use a wider dtype.")
    return value


def exponential(value: float) -> float:
    """e^value, or infinity if that exceeds the range of floats."""
    return math.exp(value) if value < 709 else math.inf
