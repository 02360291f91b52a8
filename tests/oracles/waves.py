"""Numbers that anyone can make again, for values stored from other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def wave(shape: tuple[int, ...], phase: float) -> NDArray[Any]:
    """sin(phase + 0.7 n), n = 0, 1, 2, ... in row-major order."""
    count = int(np.prod(shape))
    return np.asarray(np.sin(phase + 0.7 * np.arange(count)).reshape(shape))
