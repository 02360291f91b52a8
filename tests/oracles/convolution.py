"""Causal convolutions over time that never cross a document's beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import sigmoid

Array = NDArray[Any]


def causal_convolution(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    dilation: int = 1,
    begins: Sequence[bool] | None = None,
    history: Array | None = None,
) -> Array:
    """y_t = b + sum_k W[:, :, k] x_{t - (K-1-k) dilation}: the last tap lies on the current token.

    x[T, D], weight[D_out, D, K] in torch.nn.Conv1d's layout, y[T, D_out]. Taps before the sequence, or before the
    beginning (begins[t] true) of token t's document, read zero. history[P, D] are the inputs just before x, of the
    document that is running when x starts. van den Oord et al. 2016 (WaveNet), section 2.1. Compared with
    torch.nn.functional.conv1d on the left-padded input and with each document alone.
    """
    past = np.zeros((0, x.shape[1])) if history is None else history
    inputs = np.concatenate([past, x])
    starts = [False] * len(past) + ([False] * len(x) if begins is None else [bool(b) for b in begins])
    n_out, _, n_taps = weight.shape
    y = np.zeros((len(x), n_out)) if bias is None else np.tile(np.asarray(bias, dtype=np.float64), (len(x), 1))
    for t in range(len(x)):
        now = len(past) + t
        for k in range(n_taps):
            source = now - (n_taps - 1 - k) * dilation
            if source >= 0 and not any(starts[source + 1 : now + 1]):
                y[t] = y[t] + weight[:, :, k] @ inputs[source]
    return y


def gated_convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    gate_weight: Array,
    gate_bias: Array | None,
    *,
    dilation: int = 1,
    begins: Sequence[bool] | None = None,
    history: Array | None = None,
) -> Array:
    """(X * W + b) sigmoid(X * V + c), * the causal convolution; Dauphin et al. 2017, eq. 1.

    Compared with torch.nn.functional.glu of torch's conv1d.
    """
    value = causal_convolution(x, weight, bias, dilation=dilation, begins=begins, history=history)
    gate = causal_convolution(x, gate_weight, gate_bias, dilation=dilation, begins=begins, history=history)
    return value * sigmoid(gate)
