"""Directional derivatives by central differences, to test gradients that someone else computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def directional_derivative(
    f: Callable[..., Any], args: Sequence[Array], directions: Sequence[Array], eps: float = 1e-4
) -> Array:
    """d/dh f(args + h directions) at h = 0, in the shape of f's value, error O(eps^4).

    Central differences D(h) = (f(x + h v) - f(x - h v)) / 2h, and Richardson's (4 D(h/2) - D(h)) / 3. With float64
    and values near 1, rounding leaves about 1e-12 at the default eps. `f` must be smooth within eps of args: a ReLU
    whose input lies nearer to 0 than the step spoils the estimate.
    """
    points = [np.asarray(arg, dtype=np.float64) for arg in args]

    def value(h: float) -> Array:
        return np.asarray(f(*[p + h * d for p, d in zip(points, directions, strict=True)]), dtype=np.float64)

    def central(h: float) -> Array:
        return (value(h) - value(-h)) / (2.0 * h)

    return np.asarray((4.0 * central(eps / 2.0) - central(eps)) / 3.0)


def gradient_errors(
    f_oracle: Callable[..., Any],
    args: Sequence[Array],
    gradients: Sequence[Array],
    rng: np.random.Generator,
    *,
    cotangent: Array | None = None,
    n_directions: int = 3,
    eps: float = 1e-4,
) -> list[float]:
    """Largest relative error of <gradient, direction> for each argument alone, then for all of them together.

    `f_oracle(*args)` gives a number, or an array that `cotangent` turns into the number sum(cotangent f); `gradients`
    are that number's claimed gradients. Directions are standard normal, so <g, v> is about |g|, and errors are
    relative to |g| of the argument, or to 1e-4 of the whole gradient's norm where an argument's own gradient is
    smaller than that (a key bias under softmax has gradient zero, and rounding is not an error); NaN anywhere gives
    an infinite error.
    """
    weight = 1.0 if cotangent is None else cotangent

    def scalar(*point: Array) -> Any:
        return np.sum(weight * np.asarray(f_oracle(*point)))

    if len(gradients) != len(args) or any(np.shape(g) != np.shape(a) for g, a in zip(gradients, args, strict=False)):
        raise ValueError(f"one gradient per argument, of its shape: {[np.shape(g) for g in gradients]}")
    total = float(np.sqrt(sum(np.sum(np.square(g)) for g in gradients)))
    subsets = [[n] for n in range(len(args))] + [list(range(len(args)))]
    errors = []
    for subset in subsets:
        norm = float(np.sqrt(sum(np.sum(np.square(gradients[n])) for n in subset)))
        scale = max(norm, 1e-4 * total, 1e-12)
        worst = 0.0
        for _ in range(n_directions):
            directions = [
                rng.standard_normal(np.shape(a)) if n in subset else np.zeros(np.shape(a)) for n, a in enumerate(args)
            ]
            measured = float(directional_derivative(scalar, args, directions, eps))
            claimed = float(sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True)))
            error = abs(measured - claimed) / scale
            worst = max(worst, error) if np.isfinite(error) else np.inf
        errors.append(worst)
    return errors


def gradient_agrees(
    f_oracle: Callable[..., Any],
    args: Sequence[Array],
    gradients: Sequence[Array],
    rng: np.random.Generator,
    rtol: float = 1e-7,
    *,
    cotangent: Array | None = None,
    n_directions: int = 3,
    eps: float = 1e-4,
) -> bool:
    """Whether every error of `gradient_errors` is at most rtol.

    Compared with gradients derived by hand (a quadratic form) and with torch.autograd on an LSTM and on attention.
    """
    errors = gradient_errors(f_oracle, args, gradients, rng, cotangent=cotangent, n_directions=n_directions, eps=eps)
    return max(errors) <= rtol
