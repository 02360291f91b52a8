"""Tests of models that answered the same requests of a benchmark: McNemar's, and a paired bootstrap over requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float64

from weft.benchmarks import BenchmarkResult
from weft.comparison.statistics import holm, t_test
from weft.core.errors import InputError
from weft.core.strict_json import Record

RESAMPLES, CONFIDENCE = 10_000, 0.95
FEW_VALUES = 64
"""With at most so many different values, how often each is drawn is drawn itself."""


@dataclass(frozen=True)
class ItemDifference(Record):
    """``first`` minus ``second`` over the same requests.

    Attributes:
        first: and ``second``: the models.
        measure: ``right``, the share of requests that are answered right (or of programs that pass); or ``perplexity``,
            whose difference is first's divided by second's, of the mean log-probabilities of the right answers.
        low: and ``high``: its interval at 95 %, from a bootstrap that draws requests; that of a perplexity is one of
            the difference of mean nats, exponentiated.
        only_first: requests that ``first`` alone answers right, and ``only_second``; 0 of perplexities.
        p_value: two-sided; of requests that are right or wrong McNemar's exact one (McNemar 1947; Dietterich 1998,
            section 3.1), of others Student's t over the paired differences. None where it cannot be had.
        p_holm: after Holm's correction over all differences that were asked for together.
    """

    first: str
    second: str
    measure: str
    difference: float
    low: float
    high: float
    only_first: int
    only_second: int
    p_value: float | None
    p_holm: float | None
    n: int

    def line(self) -> str:
        """The difference in words."""
        p = "not known" if self.p_holm is None else "< 0.0001" if self.p_holm < 0.0001 else f"{self.p_holm:.4f}"
        how = (f"{self.difference:.4f} times its perplexity (95 % {self.low:.4f} to {self.high:.4f})"
               if self.measure == "perplexity" else
               f"{self.difference:+.4f} right (95 % {self.low:+.4f} to {self.high:+.4f}); {self.only_first:,} requests "
               f"are right of it alone, {self.only_second:,} of the other alone")
        return f"{self.first} against {self.second}: {how}; p {p} after Holm, {self.n:,} requests"


def compared_by_request(results: Sequence[BenchmarkResult], *, seed: int = 0) -> tuple[ItemDifference, ...]:
    """Every pair of models on one benchmark.

    Args:
        results: of models that were asked the same requests.

    Raises:
        InputError: fewer than two, other requests, or a benchmark that does not mark each request.
    """
    if len(results) < 2:
        raise InputError("one result, and two are compared.", where="results", remedy="Give those of several models.")
    _require_same_requests(results)
    names = [f"{each.model} ({place})" if [other.model for other in results].count(each.model) > 1 else each.model
             for place, each in enumerate(results, 1)]
    found = [_difference(names[i], names[j], measure, values[i], values[j], seed)
             for measure, values in _measures(results).items()
             for i, j in combinations(range(len(results)), 2)]
    return tuple(replace(each, p_holm=p) for each, p in zip(found, holm([each.p_value for each in found]), strict=True))


def _require_same_requests(results: Sequence[BenchmarkResult]) -> None:
    first = results[0]
    for each in results[1:]:
        if (each.benchmark, each.settings, len(each.requests)) != (
                first.benchmark, first.settings, len(first.requests)):
            raise InputError(f"{first.model} answered {len(first.requests):,} requests of {first.benchmark}, and "
                             f"{each.model} {len(each.requests):,} of {each.benchmark}, or with other settings.",
                             where="results", remedy="Ask both the same benchmark with the same settings.")
        other = sum(mine.get("prompt_sha256") != its.get("prompt_sha256")
                    for mine, its in zip(first.requests, each.requests, strict=True))
        if other:
            raise InputError(f"{other:,} of {len(first.requests):,} requests to {each.model} have another prompt than "
                             f"those to {first.model}.", where="results", remedy="Ask both about the same data.")


def _measures(results: Sequence[BenchmarkResult]) -> dict[str, list[Float64[np.ndarray, " n"]]]:
    """The values of every model for each measure, in the order of the requests."""
    found = {}
    marks = [[_mark(request) for request in each.requests] for each in results]
    if all(mark is not None for each in marks for mark in each):
        found["right"] = [np.array(each, dtype=np.float64) for each in marks]
    nats = [[-float(request["log_prob"]) for request in each.requests if "log_prob" in request] for each in results]
    # A word without probability has no finite nats, and a difference to it none either.
    if all(len(each) == len(result.requests) and all(map(math.isfinite, each))
           for each, result in zip(nats, results, strict=True)):
        found["perplexity"] = [np.array(each) for each in nats]
    if not found:
        raise InputError(f"{results[0].benchmark} does not mark its requests one by one.", where="task",
                         remedy="Compare the scores by their standard errors.")
    return found


def _mark(request: Mapping[str, Any]) -> float | None:
    """The part of a request's answers that are right; None where they are not marked."""
    if "correct" in request:
        return float(request["correct"])
    return float(request["passed"]) / len(request["outcomes"]) if "passed" in request else None


def _difference(first: str, second: str, measure: str, ours: Float64[np.ndarray, " n"],
                theirs: Float64[np.ndarray, " n"], seed: int) -> ItemDifference:
    values = ours - theirs
    mean, (low, high) = float(values.mean()), _interval(values, seed)
    plain = measure == "perplexity" or not np.isin(np.concatenate([ours, theirs]), (0.0, 1.0)).all()
    more, less = (0, 0) if measure == "perplexity" else (int((values > 0).sum()), int((values < 0).sum()))
    p_value = t_test(values.tolist(), CONFIDENCE).p_value if plain else mcnemar(more, less)
    if measure == "perplexity":
        mean, low, high = math.exp(mean), math.exp(low), math.exp(high)
    return ItemDifference(first, second, measure, mean, low, high, more, less, p_value, None, len(values))


def mcnemar(more: int, less: int) -> float:
    """The exact two-sided p-value of McNemar's test: of the requests that one of two models alone answers right, each
    does so with probability one half if the two are equally good.

    Args:
        more: requests that the first alone answers right.
        less: those of the second.
    """
    both = more + less
    doubled: float = 2 * sum(math.comb(both, fewer) for fewer in range(min(more, less) + 1)) / 2**both
    return min(1.0, doubled)


def _interval(values: Float64[np.ndarray, " n"], seed: int) -> tuple[float, float]:
    """Percentiles of the mean over resamples of the requests."""
    draw, count = np.random.default_rng(seed), len(values)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= FEW_VALUES:
        means = draw.multinomial(count, counts / count, size=RESAMPLES) @ distinct / count
    else:
        means = np.array([values[draw.integers(count, size=count)].mean() for _ in range(RESAMPLES)])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high
