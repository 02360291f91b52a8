"""Learning curves beyond the budget: a power law fitted to a model's runs, with a bootstrap interval, and the test that
it must pass before it is shown.

    bits(t) = floor + scale (t / T)^-exponent,    floor, scale >= 0,    T: the budget

A schedule that lets the learning rate fall to the end of the budget bends a curve in a way that a longer run would bend
only later. So the law is first fitted to the first part of the curves and asked for the end that is known: where its
interval does not contain that end, no law is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float64

from weft.comparison.results import RunResult, StudyModel
from weft.comparison.student import t_quantile

EXPONENTS: Float64[np.ndarray, " E"] = np.geomspace(0.02, 4.0, 160)
"""Among which the best is taken; for each, floor and scale are a linear problem."""
FIRST = 2 / 3
"""Share of the budget that the law is tested on: it has to say the end from it."""
FEWEST = 4
"""Checkpoints in that share: one more than the law has numbers."""
FURTHEST = 4.0
"""Budgets up to which a curve is extended."""
PLACES = 13
"""Points of an extended curve, equal ratios apart."""
MOST = 30
"""Checkpoints that are fitted, at equal distances where there are more."""
RESAMPLES, SEED = 400, 0

Verdict: TypeAlias = Literal["fits", "few", "missed", "edge"]


class Law(NamedTuple):
    """Fitted to N sets of points at once: each an array [N]."""

    floor: Float64[np.ndarray, " N"]
    scale: Float64[np.ndarray, " N"]
    exponent: Float64[np.ndarray, " N"]

    def at(self, share: Float64[np.ndarray, " P"]) -> Float64[np.ndarray, "N P"]:
        """Bits per byte at shares of the budget."""
        found: np.ndarray = self.floor[:, None] + self.scale[:, None] * share[None] ** -self.exponent[:, None]
        return found


@dataclass(frozen=True)
class ExtendedPoint:
    """Bits per byte at so many tokens, with the bounds of the interval."""

    tokens: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Extension:
    """The loss that a model's curves tend to.

    Attributes:
        verdict: ``fits``; ``few``: too few checkpoints to test a law; ``missed``: the law of the first part of the
            budget does not contain the end; ``edge``: its exponent is the least or the greatest that was tried.
        said: bits per byte at the end by the law of the first part, with its interval; None with too few checkpoints.
        ended: the mean at the end, on the same text.
        points: from the budget on; empty unless the law fits.
    """

    verdict: Verdict
    said: ExtendedPoint | None
    ended: float | None
    exponent: float | None = None
    floor: float | None = None
    points: tuple[ExtendedPoint, ...] = ()


def extended(entry: StudyModel, confidence: float) -> Extension:
    """The curves of a model's finished runs, beyond its budget."""
    tokens, bits = _points(entry.finished)
    if len(tokens) == 0:
        return Extension("few", None, None)
    share = tokens / tokens[-1]
    first = share <= FIRST
    ended = float(bits[:, -1].mean())
    if first.sum() < FEWEST:
        return Extension("few", None, ended)
    _, said = _said(share[first], bits[:, first], np.ones(1), confidence)
    said_point = _point(float(tokens[-1]), said, 0)
    places = np.geomspace(1.0, FURTHEST, PLACES)
    law, found = _said(share, bits, places, confidence)
    exponent, floor = float(law.exponent[0]), float(law.floor[0])
    if not said_point.low <= ended <= said_point.high:
        return Extension("missed", said_point, ended, exponent, floor)
    if exponent in (EXPONENTS[0], EXPONENTS[-1]):
        return Extension("edge", said_point, ended, exponent, floor)
    points = tuple(_point(float(tokens[-1] * place), found, index) for index, place in enumerate(places))
    return Extension("fits", said_point, ended, exponent, floor, points)


def _points(runs: Sequence[RunResult]) -> tuple[Float64[np.ndarray, " P"], Float64[np.ndarray, "R P"]]:
    """Tokens and bits per byte of the checkpoints that all runs share and that lie apart: the last one may lie a step
    behind the one before it."""
    curves = [{point.tokens: point.bits_per_byte for point in run.curve if math.isfinite(point.bits_per_byte)
               and point.tokens > 0} for run in runs]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    least = shared[0] / 2 if shared else 0
    apart = [at for index, at in enumerate(shared) if index == len(shared) - 1 or shared[index + 1] - at >= least]
    kept = [at for index, at in enumerate(apart) if (len(apart) - 1 - index) % max(1, -(-len(apart) // MOST)) == 0]
    return (np.array(kept, dtype=np.float64),
            np.array([[curve[at] for at in kept] for curve in curves], dtype=np.float64).reshape(len(runs), len(kept)))


def fitted(share: Float64[np.ndarray, " P"], bits: Float64[np.ndarray, "N P"]) -> Law:
    """The law of least squares of each row."""
    powers = share[None] ** -EXPONENTS[:, None]
    centred = powers - powers.mean(1, keepdims=True)
    means = bits.mean(1, keepdims=True)
    scale = np.maximum((bits - means) @ centred.T / np.maximum((centred**2).sum(1), 1e-300), 0.0)
    floor = means - scale * powers.mean(1)
    through = bits @ powers.T / (powers**2).sum(1)
    scale, floor = np.where(floor < 0, through, scale), np.maximum(floor, 0.0)
    left = ((floor[..., None] + scale[..., None] * powers[None] - bits[:, None]) ** 2).sum(-1)
    best = left.argmin(1)
    rows = np.arange(len(bits))
    return Law(floor[rows, best], scale[rows, best], EXPONENTS[best])


def _said(share: Float64[np.ndarray, " P"], bits: Float64[np.ndarray, "R P"], places: Float64[np.ndarray, " Q"],
          confidence: float) -> tuple[Law, Float64[np.ndarray, "3 Q"]]:
    """The law of the runs' mean, and what it says at other shares: mean, low, high.

    Every resample draws as many runs as there are, and adds to the law of each drawn run residuals drawn from its own,
    so that what lies between runs and what scatters around a run's law are both in the interval. Percentiles are
    expanded for few runs as in `weft.comparison.statistics.bootstrap_test`.
    """
    law, own = fitted(share, bits.mean(0, keepdims=True)), fitted(share, bits)
    smooth = own.at(share)
    # Three numbers were fitted to each run, so its residuals are too small by this factor.
    residuals = (bits - smooth) * math.sqrt(len(share) / max(1, len(share) - 3))
    runs, draws = len(bits), np.random.Generator(np.random.PCG64(SEED))
    drawn = draws.integers(runs, size=(RESAMPLES, runs))
    noise = residuals[drawn[..., None], draws.integers(len(share), size=(RESAMPLES, runs, len(share)))]
    said = fitted(share, (smooth[drawn] + noise).mean(1)).at(places)
    if runs > 1:
        tail = NormalDist().cdf(-math.sqrt(runs / (runs - 1)) * t_quantile((1 + confidence) / 2, runs - 1))
    else:
        tail = (1 - confidence) / 2
    low, high = np.quantile(said, [tail, 1 - tail], axis=0)
    return law, np.stack([law.at(places)[0], low, high])


def _point(tokens: float, found: Float64[np.ndarray, "3 Q"], index: int) -> ExtendedPoint:
    mean, low, high = (float(each[index]) for each in found)
    return ExtendedPoint(tokens, mean, min(low, mean), max(high, mean))
