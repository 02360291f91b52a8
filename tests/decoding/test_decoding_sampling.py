"""Each sampling function against an obvious reference in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from decoding.small_models import reseeded
from weft.core.errors import InputError
from weft.decoding import Sampling
from weft.decoding.sampling import NOISE_BLOCK, draw, keep_min_p, keep_top_k, keep_top_p, noise, penalise_repetition

LOGITS = torch.randn(40, 9, generator=reseeded(0), dtype=torch.float64) * 2


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(value - max(row)) for value in row)
    return [math.exp(value - max(row)) / total for value in row]


def kept(logits: torch.Tensor) -> list[set[int]]:
    return [{token for token, value in enumerate(row) if value > -math.inf} for row in logits.tolist()]


@pytest.mark.parametrize("k", [1, 3, 9, 50])
def test_top_k(k: int) -> None:
    wanted = [set(sorted(range(9), key=lambda token: -row[token])[:k]) for row in LOGITS.tolist()]
    assert kept(keep_top_k(LOGITS, k)) == wanted


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 1.0])
def test_top_p(p: float) -> None:
    wanted = []
    for row in LOGITS.tolist():
        chosen: set[int] = set()
        probability = softmax(row)
        for token in sorted(range(9), key=lambda token: -row[token]):
            if sum(probability[other] for other in chosen) < p:
                chosen.add(token)
        wanted.append(chosen)
    assert kept(keep_top_p(LOGITS, p)) == wanted


@pytest.mark.parametrize(("p", "count"), [(0.25, 1), (0.5, 2), (0.75, 3), (0.7500001, 4), (1.0, 4)])
def test_top_p_needs_no_more_where_the_sum_is_exactly_p(p: float, count: int) -> None:
    """Four tokens of a quarter each, whose sums are exact."""
    assert kept(keep_top_p(torch.zeros(1, 4), p)) == [set(range(count))]


@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 1.0])
def test_min_p(p: float) -> None:
    wanted = [{token for token, value in enumerate(softmax(row)) if value >= p * max(softmax(row)) * (1 - 1e-12)}
              for row in LOGITS.tolist()]
    assert kept(keep_min_p(LOGITS, p)) == wanted


def test_equal_logits_at_the_border() -> None:
    """Probabilities of 1/4 are exact. Top-k keeps all that equal the k-th; top-p stops as soon as the sum is p, the
    lowest ids first."""
    assert kept(keep_top_k(torch.tensor([[1.0, 2.0, 0.0, 2.0]]), 1)) == [{1, 3}]
    flat = torch.zeros(1, 4, dtype=torch.float64)
    assert [kept(keep_top_p(flat, p)) for p in (0.25, 0.5, 0.5 + 1e-9, 1.0)] == [
        [{0}], [{0, 1}], [{0, 1, 2}], [{0, 1, 2, 3}]]
    assert kept(keep_min_p(flat, 1.0)) == [{0, 1, 2, 3}]


def test_what_is_kept_keeps_its_logit() -> None:
    for narrowed in (keep_top_k(LOGITS, 3), keep_top_p(LOGITS, 0.7), keep_min_p(LOGITS, 0.2)):
        left = narrowed > -math.inf
        assert torch.equal(narrowed[left], LOGITS[left]) and not left.all()


def test_impossible_tokens_stay_impossible() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, -1.0]], dtype=torch.float64)
    for narrowed in (keep_top_k(logits, 3), keep_top_p(logits, 1.0), keep_min_p(logits, 0.0)):
        assert kept(narrowed) == [{1, 3}]
    assert set(draw(logits.expand(100, -1), torch.linspace(0, 1 - 1e-12, 100).double()).tolist()) == {1, 3}


def test_the_repetition_penalty_lowers_every_seen_token() -> None:
    seen = torch.rand(40, 9, generator=reseeded(1)) < 0.5
    found = penalise_repetition(LOGITS, seen, 1.3)
    for before, flag, after in zip(*(x.flatten().tolist() for x in (LOGITS, seen, found)), strict=True):
        lowered = before / 1.3 if before > 0 else before * 1.3
        assert after == (lowered if flag else before)


def test_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    uniform = torch.rand(40, generator=reseeded(2), dtype=torch.float64)
    wanted = []
    for row, number in zip(LOGITS.tolist(), uniform.tolist(), strict=True):
        total, token = 0.0, -1
        while total <= number:
            token += 1
            total += softmax(row)[token]
        wanted.append(token)
    assert draw(LOGITS, uniform).tolist() == wanted
    assert draw(torch.tensor([[-math.inf, 0.0]]), torch.zeros(1).double()).tolist() == [1]


def test_the_options_act_in_the_stated_order() -> None:
    """Temperature comes before top-p: at 4 the distribution is flat, and more tokens reach the sum."""
    uniform = torch.full((40,), 1 - 1e-9, dtype=torch.float64)
    found = Sampling(temperature=4.0, top_k=6, top_p=0.8, min_p=0.3).choose(LOGITS, None, uniform)
    narrowed = keep_min_p(keep_top_p(keep_top_k(LOGITS / 4.0, 6), 0.8), 0.3)
    assert torch.equal(found, draw(narrowed, uniform))
    assert not torch.equal(narrowed > -math.inf, keep_top_p(keep_top_k(LOGITS, 6), 0.8) > -math.inf)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert Sampling(temperature=0).choose(torch.tensor([[0.0, 2.0, 2.0]]), None, None).tolist() == [1]


def test_noise_depends_on_seed_and_row_alone() -> None:
    def numbers(seed: int, row: int) -> torch.Tensor:
        drawn = noise(seed, row)
        return torch.tensor([next(drawn) for _ in range(NOISE_BLOCK + 5)], dtype=torch.float64)

    first, second = numbers(3, 0), numbers(3, 2)
    assert torch.equal(second, numbers(3, 2))
    assert not torch.equal(first, second) and not torch.equal(second, numbers(4, 2))
    both = torch.cat([first, second])
    assert len(both.unique()) == both.numel()
    assert both.mean().item() == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / both.numel()))


def test_the_draws_of_a_seed_and_a_row_stay_what_they_are() -> None:
    """Else a seed that somebody wrote down would give another text."""
    drawn = noise(7, 3)
    assert [round(next(drawn), 9) for _ in range(3)] == [0.035482635, 0.091457266, 0.064512987]


@pytest.mark.parametrize(("name", "value", "remedy"), [
    ("temperature", -0.1, "Give 0"), ("temperature", math.nan, "Give 0"), ("top_k", 0, "whole number from 1"),
    ("top_p", 0.0, "above 0, at most 1"), ("top_p", 1.5, "above 0"), ("min_p", 1.1, "from 0 to 1"),
    ("repetition_penalty", 0.0, "positive number; 1 changes nothing"),
])
def test_options_out_of_range(name: str, value: float, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: {value} is out of range\. .*{remedy}"):
        Sampling(**{name: value})
