"""Recurrent networks, one step at a time: Elman, LSTM, GRU (PyTorch's and Cho's).

x[T, D]; begins[t] true means that a document starts at t: the state before t is zero, whatever came before, an initial
state included. Gates are stacked in the rows of the weights. Functions give the outputs h_1 .. h_T as [T, H] and the
final state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import relu, sigmoid, tanh

Array = NDArray[Any]


def _starts(begins: Sequence[bool] | None, t: int) -> bool:
    return begins is not None and bool(begins[t])


def elman(
    x: Array,
    w_x: Array,
    w_h: Array,
    bias: Array | None = None,
    *,
    activation: str = "tanh",
    h0: Array | None = None,
    begins: Sequence[bool] | None = None,
) -> tuple[Array, Array]:
    """h_t = f(W_x x_t + W_h h_{t-1} + b), f sigmoid, tanh or relu; Elman 1990; lecture 003, algorithm 1.

    w_x[H, D], w_h[H, H], bias[H] (torch's two biases added up). Compared with torch.nn.RNN (tanh, relu).
    """
    f: Callable[[Array], Array] = {"sigmoid": sigmoid, "tanh": tanh, "relu": relu}[activation]
    bias = np.zeros(len(w_h)) if bias is None else bias
    h = np.zeros(len(w_h)) if h0 is None else h0
    outputs = []
    for t in range(len(x)):
        if _starts(begins, t):
            h = np.zeros(len(w_h))
        h = f(w_x @ x[t] + w_h @ h + bias)
        outputs.append(h)
    return np.array(outputs).reshape(len(x), len(w_h)), h


def lstm(
    x: Array,
    w_x: Array,
    w_h: Array,
    bias: Array | None = None,
    *,
    h0: Array | None = None,
    c0: Array | None = None,
    begins: Sequence[bool] | None = None,
) -> tuple[Array, Array, Array]:
    """c_t = f c_{t-1} + i g, h_t = o tanh(c_t), gates in PyTorch's row order i, f, g, o; outputs, h_T, c_T.

    i, f, o = sigmoid(.), g = tanh(.) of W_x x_t + W_h h_{t-1} + b; w_x[4H, D], w_h[4H, H], bias[4H], the *sum* of
    torch's bias_ih and bias_hh. No peepholes. Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate).
    Compared with torch.nn.LSTM.
    """
    size = w_h.shape[1]
    bias = np.zeros(4 * size) if bias is None else bias
    h = np.zeros(size) if h0 is None else h0
    c = np.zeros(size) if c0 is None else c0
    outputs = []
    for t in range(len(x)):
        if _starts(begins, t):
            h, c = np.zeros(size), np.zeros(size)
        i, f, g, o = np.split(w_x @ x[t] + w_h @ h + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.array(outputs).reshape(len(x), size), h, c


def gru(
    x: Array,
    w_x: Array,
    w_h: Array,
    b_x: Array | None = None,
    b_h: Array | None = None,
    *,
    h0: Array | None = None,
    begins: Sequence[bool] | None = None,
    reset_after: bool = True,
) -> tuple[Array, Array]:
    """h_t = (1 - z) n + z h_{t-1}, gates in PyTorch's row order r, z, n.

    reset_after (PyTorch, cuDNN): n = tanh(W_n x + b_xn + r (U_n h + b_hn)). Otherwise the form of Cho et al. 2014,
    eq. 8: n = tanh(W_n x + b_xn + U_n (r h) + b_hn); their z, too, weighs the old state (eq. 7). w_x[3H, D],
    w_h[3H, H], b_x[3H], b_h[3H]; the two biases of r and z only ever occur as sums. Compared with torch.nn.GRU and,
    for Cho's form, with ONNX's reference GRU, linear_before_reset=0 (stored numbers).
    """
    size = w_h.shape[1]
    b_x = np.zeros(3 * size) if b_x is None else b_x
    b_h = np.zeros(3 * size) if b_h is None else b_h
    h = np.zeros(size) if h0 is None else h0
    w_hr, w_hz, w_hn = np.split(w_h, 3)
    b_hr, b_hz, b_hn = np.split(b_h, 3)
    outputs = []
    for t in range(len(x)):
        if _starts(begins, t):
            h = np.zeros(size)
        x_r, x_z, x_n = np.split(w_x @ x[t] + b_x, 3)
        r = sigmoid(x_r + w_hr @ h + b_hr)
        z = sigmoid(x_z + w_hz @ h + b_hz)
        n = np.tanh(x_n + r * (w_hn @ h + b_hn)) if reset_after else np.tanh(x_n + w_hn @ (r * h) + b_hn)
        h = (1.0 - z) * n + z * h
        outputs.append(h)
    return np.array(outputs).reshape(len(x), size), h
