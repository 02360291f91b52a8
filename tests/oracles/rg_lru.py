"""Griffin's recurrent block, token by token, for one row; De et al. 2024, sections 2.3 and 2.4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    """Hendrycks & Gimpel 2016, section 2, approximated."""
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3))) / 2


def blocks(x: Array, weight: Array, bias: Array) -> Array:
    """Each block of features times its own matrix [in,out]."""
    parts = np.split(x, len(weight))
    return np.concatenate([part @ each + own for part, each, own in zip(parts, weight, bias, strict=True)])


def block(x: Array, branches: Array, biases: Array, taps: Array, tap_bias: Array, gates: Sequence[Array], rate: Array,
          out: Array, out_bias: Array, begins: Sequence[bool]) -> Array:
    """y [T,D] of x [T,D]: equations 1 to 4 between two maps, the first token of a document entering whole.

    ``gates`` are weight and bias of the recurrence gate, then of the input gate.
    """
    width, reach = len(rate), taps.shape[1]
    projected = x @ branches.T + biases
    entering, gate = projected[:, :width], projected[:, width:]
    rows, memory, age = [], np.zeros(width), 0
    for t in range(len(x)):
        age = 0 if t == 0 or begins[t] else age + 1
        u = tap_bias.copy()
        for lag in range(min(reach, age + 1)):
            u = u + taps[:, reach - 1 - lag] * entering[t - lag]
        r, i = sigmoid(blocks(u, gates[0], gates[1])), sigmoid(blocks(u, gates[2], gates[3]))
        a = np.exp(-8 * r * np.log1p(np.exp(rate)))
        memory = i * u if age == 0 else a * memory + np.sqrt(1 - a * a) * (i * u)
        rows.append((gelu_tanh(gate[t]) * memory) @ out.T + out_bias)
    return np.array(rows)
