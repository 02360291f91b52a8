"""The result of a benchmark: scores with their standard errors, the protocol, and the result of every request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from weft.core.strict_json import Record, plain
from weft.evaluation.measuring import exponential


@dataclass(frozen=True)
class Score(Record):
    """A measure.

    Attributes:
        name: of the measure, such as ``accuracy``.
        standard_error: of the value, the requests being a random sample of their kind; None with fewer than two.
        n: requests that the value is of.
        of: the part of the benchmark, such as a subject; empty: all of it.
        low: and ``high``: bounds of a 95 % interval where it is not symmetric, as that of a perplexity; None otherwise.
    """

    name: str
    value: float
    standard_error: float | None
    n: int
    of: str = ""
    low: float | None = None
    high: float | None = None

    def line(self) -> str:
        """The score in words."""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.4f}"
        if self.low is not None and self.high is not None:
            error = f" (95 % {self.low:.4f} to {self.high:.4f})"
        return f"{self.name} {self.value:.4f}{error} (n = {self.n:,})"


@dataclass(frozen=True)
class BenchmarkProtocol(Record):
    """How a benchmark was run; scores under different protocols cannot be compared.

    Attributes:
        prompt: the text that is asked, with names in braces where the data's text stands.
        shots: worked examples before each request, and where they are from, in words.
        scoring: how the model answers and how its answer is marked.
        normalisation: what log-probabilities are divided by.
        tokenizer: its name, and the beginning of its fingerprint; and how a prompt and a completion are divided.
        context: how many tokens a row has, and what happens to longer ones.
        cut: requests whose prompt was cut.
        data: name and SHA-256 of what was read.
        error: how standard errors are computed.
        first: only so many requests of each part were used; None: all.
        runs: programs that were run, and under which limits; empty: none.
    """

    prompt: str
    shots: str
    scoring: str
    normalisation: str
    tokenizer: str
    context: str
    cut: int
    data: str
    error: str
    first: int | None = None
    runs: str = ""

    def describe(self) -> str:
        """The protocol in lines."""
        lines = {"prompt": repr(self.prompt), "examples": self.shots, "scoring": self.scoring,
                 "normalisation": self.normalisation, "tokenizer": self.tokenizer,
                 "context": f"{self.context} ({self.cut:,} prompts were cut)", "programs": self.runs, "data": self.data,
                 "requests": "" if self.first is None else f"only the first {self.first:,} of each part",
                 "standard errors": self.error}
        return "\n".join(f"{name}: {line}" for name, line in lines.items() if line)


@dataclass(frozen=True)
class BenchmarkResult(Record):
    """The result of a benchmark.

    Attributes:
        scores: of all of it first, then of its parts.
        model: path of the checkpoint.
        example: the first prompt, whole.
        requests: what was found for each request, in the order of the data.
    """

    benchmark: str
    settings: Mapping[str, Any]
    scores: tuple[Score, ...]
    protocol: BenchmarkProtocol
    model: str
    fingerprint: str
    example: str
    requests: tuple[Mapping[str, Any], ...]

    def score(self, name: str, of: str = "") -> Score:
        """The score of that name. Raises `KeyError`: there is none."""
        for score in self.scores:
            if (score.name, score.of) == (name, of):
                return score
        raise KeyError(f"no {name!r} of {of!r}")

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the protocol in words."""
        return {**super().to_json(), "protocol": {**plain(self.protocol), "description": self.protocol.describe()}}


MEAN_ERROR = "standard error of a mean: the sample's standard deviation (n - 1) over sqrt(n)"
"""What `mean_score` computes."""


def mean_score(name: str, values: Sequence[float], of: str = "") -> Score:
    """The mean of the values of some requests."""
    return Score(name, math.fsum(values) / len(values), standard_error(values), len(values), of)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean of values: s / sqrt(n), where s^2 = sum (x - mean)^2 / (n - 1). None for fewer than
    two values, and for values that are not finite."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2 or not math.isfinite(mean):
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)


def macro_score(name: str, parts: Sequence[Score]) -> Score:
    """The mean of parts whose scores count alike. The parts are fixed and their requests are the sample, so the
    variances of the parts add: sqrt(sum e_s^2) / S."""
    errors = [part.standard_error for part in parts if part.standard_error is not None]
    error = math.sqrt(math.fsum(each * each for each in errors)) / len(parts) if len(errors) == len(parts) else None
    return Score(name, math.fsum(part.value for part in parts) / len(parts), error, sum(part.n for part in parts))


def perplexity_score(name: str, log_probs: Sequence[float]) -> Score:
    """exp(-mean) of the log-probabilities of some requests. Its interval is the normal one of the mean nats,
    exponentiated, since nats and not perplexities are near to a normal distribution; its standard error is, to first
    order, that of the mean times the perplexity."""
    mean, error = -math.fsum(log_probs) / len(log_probs), standard_error(log_probs)
    value = exponential(mean)
    if error is None:
        return Score(name, value, None, len(log_probs))
    reach = NormalDist().inv_cdf(0.975) * error
    return Score(name, value, error * value, len(log_probs), low=exponential(mean - reach),
                 high=exponential(mean + reach))
