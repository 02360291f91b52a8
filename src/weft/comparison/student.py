"""Student's t distribution, from the incomplete beta function; PyTorch and NumPy have neither."""

from __future__ import annotations

import functools
import math

TINY = 1e-300
PRECISION = 1e-15
TERMS = 10_000


def t_two_sided(t: float, freedom: float) -> float:
    """P(|T| >= |t|) = I_x(freedom/2, 1/2) with x = freedom / (freedom + t^2) (Abramowitz and Stegun 1964, 26.7.1)."""
    if math.isinf(t):
        return 0.0
    if abs(t) < 1:  # x is near one, and only its distance from one has digits
        return 1 - incomplete_beta(t * t / (freedom + t * t), 0.5, freedom / 2)
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@functools.cache
def t_quantile(probability: float, freedom: float) -> float:
    """The value below which T lies with that probability, above 0 and below 1."""
    if not 0 < probability < 1:
        raise ValueError(f"a quantile of {probability}: a probability lies between 0 and 1, both excluded")
    tail = 2 * min(probability, 1 - probability)
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > tail:
        low, high = high, 2 * high
    while high - low > 4e-16 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if t_two_sided(middle, freedom) > tail else (low, middle)
    return high if probability > 0.5 else -high if probability < 0.5 else 0.0


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), regularised, by its continued fraction (Press et al. 2007, section 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, TERMS):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < PRECISION:
            return value
    raise AssertionError(f"the continued fraction of I_{x}({a}, {b}) does not converge")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
