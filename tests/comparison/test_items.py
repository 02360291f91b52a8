"""Models that answered the same requests: McNemar's exact test, the paired bootstrap, Holm, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from weft.benchmarks import BenchmarkProtocol, BenchmarkResult
from weft.benchmarks.result import perplexity_score
from weft.comparison.items import compared_by_request, mcnemar
from weft.core.errors import InputError


def result(model: str, requests: Sequence[dict[str, Any]], **changes: Any) -> BenchmarkResult:
    """Of requests whose prompts are numbered."""
    protocol = BenchmarkProtocol("p", "none", "s", "none", "t", "c", 0, "data", "e")
    fields = {"benchmark": "mmlu", "settings": {"shots": 5}, **changes}
    return BenchmarkResult(fields["benchmark"], fields["settings"], (), protocol, model, "f", "", tuple(
        {"prompt_sha256": str(place), **request} for place, request in enumerate(requests)))


def answered(model: str, right: Sequence[bool]) -> BenchmarkResult:
    return result(model, [{"correct": bool(each)} for each in right])


@pytest.mark.parametrize(("more", "less"), [(9, 1), (1, 9), (5, 5), (0, 0), (12, 3), (1, 0)])
def test_mcnemars_p_is_the_binomial_sum(more: int, less: int) -> None:
    n, fewer = more + less, min(more, less)
    tail = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n
    assert mcnemar(more, less) == pytest.approx(min(1.0, 2 * tail) if n else 1.0)


def test_a_pair_is_compared_by_the_requests_on_which_the_two_differ() -> None:
    draw = np.random.default_rng(2)
    hard = draw.random(400)
    first, second = hard < 0.7, (hard < 0.7) ^ (draw.random(400) < 0.08)
    found, = compared_by_request([answered("a", first.tolist()), answered("b", second.tolist())])
    values = first.astype(float) - second.astype(float)
    assert found.difference == pytest.approx(values.mean())
    assert (found.only_first, found.only_second) == (int((values > 0).sum()), int((values < 0).sum()))
    assert found.p_value == pytest.approx(mcnemar(found.only_first, found.only_second)) == found.p_holm
    # The bootstrap's percentiles lie within a tenth of the normal interval of the paired mean; unpaired it is twice it.
    half = 1.96 * values.std() / 20
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)
    assert 2 * half < 0.5 * 2 * 1.96 * math.hypot(first.std(), second.std()) / 20
    assert found.line().startswith(f"a against b: {found.difference:+.4f} right (95 % ")


def test_p_values_of_several_models_are_corrected() -> None:
    base = [place % 3 > 0 for place in range(60)]
    models = [answered(name, [*base[:first], *[True] * (60 - first)]) for name, first in
              (("a", 60), ("b", 45), ("c", 30))]
    found = compared_by_request(models)
    plain = sorted(each.p_value or 0.0 for each in found)
    corrected = sorted(each.p_holm or 0.0 for each in found)
    assert corrected[0] == pytest.approx(3 * plain[0])
    assert corrected[1] == pytest.approx(max(corrected[0], 2 * plain[1]))
    same = compared_by_request([answered("a", base), answered("a", base)])
    assert (same[0].first, same[0].second, same[0].p_holm) == ("a (1)", "a (2)", 1.0)


def test_equal_models_are_told_apart_in_at_most_a_twentieth_of_the_benchmarks() -> None:
    draw, told = np.random.default_rng(5), 0
    for _ in range(400):
        shared, own = draw.random(80) < 0.5, draw.random((2, 80)) < 0.6
        each = np.where(shared, own[0], own)
        told += mcnemar(int((each[0] & ~each[1]).sum()), int((~each[0] & each[1]).sum())) < 0.05
    assert told <= 32  # 20 expected at the nominal rate, standard deviation 4.4; the exact test has fewer


def test_perplexities_are_compared_and_bounded_on_the_logarithmic_scale() -> None:
    nats = np.random.default_rng(0).gamma(2.0, 2.0, size=(2, 300))
    models = [result(name, [{"correct": False, "log_prob": -float(each)} for each in row])
              for name, row in zip("ab", nats, strict=True)]
    right, ratio = compared_by_request(models)
    assert (right.measure, right.p_value) == ("right", 1.0)
    values = nats[0] - nats[1]
    assert ratio.measure == "perplexity" and ratio.difference == pytest.approx(math.exp(values.mean()))
    assert ratio.p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    reach = 1.96 * values.std(ddof=1) / math.sqrt(300)
    # 10,000 resamples give a percentile to a few hundredths of the standard error.
    assert math.log(ratio.low) == pytest.approx(values.mean() - reach, abs=0.1 * reach)
    assert math.log(ratio.high) == pytest.approx(values.mean() + reach, abs=0.1 * reach)
    score = perplexity_score("perplexity", (-nats[0]).tolist())
    bounds = stats.norm.interval(0.95, nats[0].mean(), stats.sem(nats[0]))
    assert (score.low, score.high) == pytest.approx(tuple(map(math.exp, bounds)))
    assert score.low is not None and score.high is not None and score.high - score.value > score.value - score.low
    assert f"(95 % {score.low:.4f} to {score.high:.4f})" in score.line()
    endless = result("c", [{"correct": True, "log_prob": -math.inf} for _ in range(300)])
    assert [each.measure for each in compared_by_request([models[0], endless])] == ["right"]


def test_programs_with_several_samples_are_compared_by_the_share_that_passes() -> None:
    first = result("a", [{"passed": each, "outcomes": ["x"] * 4} for each in (4, 2, 3, 1)])
    second = result("b", [{"passed": each, "outcomes": ["x"] * 4} for each in (3, 2, 1, 1)])
    found, = compared_by_request([first, second])
    assert found.difference == pytest.approx(3 / 16)
    assert found.p_value == pytest.approx(stats.ttest_1samp([0.25, 0, 0.5, 0], 0).pvalue)


@pytest.mark.parametrize(("results", "message"), [
    ([answered("a", [True])], r"results: one result, and two are compared\. Give those of several models\."),
    ([answered("a", [True]), answered("b", [True, False])], r"a answered 1 requests of mmlu, and b 2 of mmlu, or with "
     r"other settings\. Ask both the same benchmark with the same settings\."),
    ([answered("a", [True]), result("b", [{"correct": True}], settings={"shots": 0})], r"or with other settings"),
    ([answered("a", [True]), result("b", [{"correct": True, "prompt_sha256": "other"}])],
     r"1 of 1 requests to b have another prompt than those to a\. Ask both about the same data\."),
    ([result("a", [{}]), result("b", [{}])], r"task: mmlu does not mark its requests one by one\. Compare the scores"),
])
def test_what_cannot_be_compared_is_refused(results: list[BenchmarkResult], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compared_by_request(results)
