"""What measuring a model on held-out examples shares, whatever is measured."""

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
    """The model in evaluation mode and without gradients; gives its device."""
    # Not inference_mode: what a layer may keep from here must still serve a backward pass later.
    with evaluation_mode(model), torch.no_grad():
        yield device_of(model)


def in_batches(size: int, rows: int) -> list[Int64[np.ndarray, " B"]]:
    """The numbers below ``size`` in order, so many at a time."""
    return [np.arange(first, min(first + rows, size)) for first in range(0, size, rows)]


def spread(batches: Sequence[T], count: int | None) -> list[T]:
    """So many of the batches, spread evenly over them; None: all.

    Raises:
        DataError: fewer than one.
    """
    if count is None or count >= len(batches):
        return list(batches)
    if count < 1:
        raise DataError(f"must be at least 1, received {count}.", where="batches", remedy="Raise it, or leave it out.")
    return [batches[place] for place in np.linspace(0, len(batches) - 1, count).round().astype(int).tolist()]


def finite(total: Tensor, where: str) -> float:
    """A sum over a batch as a number.

    Raises:
        FailedError: it is NaN.
    """
    found = float(total)
    if math.isnan(found):
        raise FailedError("the model gives NaN.", where=where,
                          remedy="Check the checkpoint with weft check, or use a wider dtype.")
    return found
