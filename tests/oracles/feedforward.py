"""Position-wise feed-forwards: two-layer perceptrons and gated linear units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import activations

Array = NDArray[Any]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": activations.relu,
    "squared_relu": activations.squared_relu,
    "gelu": activations.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "silu": activations.silu,
    "sigmoid": activations.sigmoid,
    "tanh": activations.tanh,
    "quick_gelu": activations.quick_gelu,
    "clipped_gelu": activations.clipped_gelu,
    "mish": activations.mish,
    "leaky_relu": activations.leaky_relu,
    "relu6": activations.relu6,
    "hard_swish": activations.hard_swish,
    "laplace": activations.laplace,
}


def mlp(
    x: Array, w_1: Array, w_2: Array, b_1: Array | None = None, b_2: Array | None = None, activation: str = "relu"
) -> Array:
    """y = W_2 f(W_1 x + b_1) + b_2 for each token alone; Vaswani et al. 2017, eq. 2.

    x[T, D], w_1[F, D], w_2[D, F]. Compared with torch.nn.Sequential of two Linear layers.
    """
    f = ACTIVATIONS[activation]
    out = np.zeros((len(x), len(w_2)))
    for t, token in enumerate(x):
        hidden = f(w_1 @ token + (0.0 if b_1 is None else b_1))
        out[t] = w_2 @ hidden + (0.0 if b_2 is None else b_2)
    return out


def glu(
    x: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    activation: str = "sigmoid",
    b_gate: Array | None = None,
    b_up: Array | None = None,
    b_down: Array | None = None,
    limit: float = np.inf,
    shift: float = 0.0,
) -> Array:
    """y = W_down (f(W_gate x + b_gate) (W_up x + b_up)) + b_down for each token alone; Shazeer 2020, eq. 5 and 6.

    gpt-oss: what f is given is cut off above `limit`, the other factor at -limit and limit, then `shift` is added.

    x[T, D], w_gate[F, D], w_up[F, D], w_down[D, F]; Mixtral's w1, w3 and w2. f identity gives the bilinear layer.
    Compared with torch (linear, silu, gelu).
    """
    f = ACTIVATIONS[activation]
    out = np.zeros((len(x), len(w_down)))
    for t, token in enumerate(x):
        gate = f(np.minimum(w_gate @ token + (0.0 if b_gate is None else b_gate), limit))
        up = np.maximum(np.minimum(w_up @ token + (0.0 if b_up is None else b_up), limit), -limit)
        out[t] = w_down @ (gate * (up + shift)) + (0.0 if b_down is None else b_down)
    return out


def swiglu(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    """`glu` with silu (swish with beta = 1), no biases; Shazeer 2020, eq. 6; PaLM, Llama."""
    return glu(x, w_gate, w_up, w_down, "silu")


def geglu(x: Array, w_gate: Array, w_up: Array, w_down: Array, approximate: bool = False) -> Array:
    """`glu` with gelu, exact or (T5 1.1, Gemma) the tanh form, no biases; Shazeer 2020, eq. 6."""
    return glu(x, w_gate, w_up, w_down, "gelu_tanh" if approximate else "gelu")


def reglu(x: Array, w_gate: Array, w_up: Array, w_down: Array) -> Array:
    """`glu` with relu, no biases; Shazeer 2020, eq. 6."""
    return glu(x, w_gate, w_up, w_down, "relu")
