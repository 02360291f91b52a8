"""Estimators against the naive reference, hand-worked numbers, and the axioms of probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.ngrams import START, NaiveNgrams
from weft.core.errors import InputError
from weft.ngram import NgramCounts, NgramTable, add_k, count_ngrams, katz, maximum_likelihood, modified_kneser_ney
from weft.ngram.kneser_ney import estimate_discounts, katz_discounts

V = 4
Naive = Callable[[NaiveNgrams, int, tuple[int, ...]], float]
ESTIMATORS: dict[str, tuple[Callable[[NgramCounts], NgramTable], Naive]] = {
    "maximum likelihood": (maximum_likelihood, NaiveNgrams.maximum_likelihood),
    "add-k": (lambda counts: add_k(counts, 0.3), lambda naive, word, context: naive.add_k(word, context, 0.3)),
    "Katz": (katz, NaiveNgrams.katz),
    "Kneser-Ney": (modified_kneser_ney, NaiveNgrams.kneser_ney),
}
corpora = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=14), min_size=1, max_size=5)


def count(documents: list[list[int]], order: int, *, vocab_size: int = V, bos: int | None = None) -> NgramCounts:
    tokens = np.array([token for document in documents for token in document])
    begins = np.array([place == 0 for document in documents for place in range(len(document))], dtype=bool)
    return count_ngrams(tokens, begins, order=order, vocab_size=vocab_size, bos=bos)


def all_contexts(order: int) -> list[tuple[int, ...]]:
    """Every context of order-1 words, and those of a document's start."""
    inner = list(itertools.product(range(V), repeat=order - 1))
    starts = [(START, *rest) for size in range(order - 1) for rest in itertools.product(range(V), repeat=size)]
    return inner + starts


def padded(contexts: list[tuple[int, ...]], order: int, bos: int = V) -> np.ndarray:
    rows = [[bos if word == START else word for word in context] for context in contexts]
    return np.array([[bos] * (order - 1 - len(row)) + row for row in rows], dtype=np.int64).reshape(
        len(rows), order - 1
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@given(documents=corpora, order=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_equals_the_naive_reference_everywhere(name: str, documents: list[list[int]], order: int) -> None:
    fast, slow = ESTIMATORS[name]
    table, naive = fast(count(documents, order)), NaiveNgrams(documents, order, range(V))
    contexts = all_contexts(order)[:40]
    expected = [[slow(naive, word, context) for word in range(V)] for context in contexts]
    found = np.exp(table.log_distribution(padded(contexts, order)))
    # Both sum at most tens of float64 terms of size 1; Katz divides by what is left of 1, here at least 1e-3.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
@given(documents=corpora, order=st.integers(1, 5), bos=st.sampled_from([None, V]))
@settings(max_examples=40, deadline=None)
def test_distributions_sum_to_one(name: str, documents: list[list[int]], order: int, bos: int | None) -> None:
    table = ESTIMATORS[name][0](count(documents, order, vocab_size=V if bos is None else V + 1, bos=bos))
    contexts = padded(all_contexts(order)[-300:], order)
    found = np.exp(table.log_distribution(contexts))
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    if bos is not None:
        assert np.all(found[:, bos] == 0.0)


def test_the_lectures_dice() -> None:
    """After "cows eat" the lecture counts 4, 3, 2, 1, 1: p = 4/11, 3/11, 2/11, 1/11, 1/11, else nothing."""
    cows, eat, foods = 0, 1, [2] * 4 + [3] * 3 + [4] * 2 + [5] + [6]
    table = maximum_likelihood(count([[cows, eat, food] for food in foods], 3, vocab_size=8))
    found = np.exp(table.log_distribution(np.array([[cows, eat]])))[0]
    np.testing.assert_allclose(found, np.array([0, 0, 4, 3, 2, 1, 1, 0]) / 11, rtol=1e-15)


def test_maximum_likelihood_is_honest_about_what_it_never_saw() -> None:
    table = maximum_likelihood(count([[0, 1, 0, 2]], 2))
    assert table.log_prob(np.array([[0], [0]]), np.array([3, 1])).tolist() == [
        -math.inf, pytest.approx(math.log(0.5), rel=1e-15)]  # NumPy has a logarithm of its own
    # 2 was never followed: its context says nothing, and p is the unigram's.
    np.testing.assert_allclose(table.log_prob(np.array([[2]]), np.array([0])), math.log(0.5), rtol=1e-15)


def test_add_one_by_hand() -> None:
    table = add_k(count([[0, 1, 0, 2]], 2), 1.0)
    found = np.exp(table.log_distribution(np.array([[0], [3], [V]])))
    np.testing.assert_allclose(found[0], np.array([1, 2, 2, 1]) / 6, rtol=1e-14)
    np.testing.assert_allclose(found[1], np.full(4, 1 / 4), rtol=1e-14)
    np.testing.assert_allclose(found[2], np.array([2, 1, 1, 1]) / 5, rtol=1e-14)


@pytest.mark.parametrize("k", [0.0, -1.0, math.nan, math.inf])
def test_add_k_refuses(k: float) -> None:
    with pytest.raises(InputError, match=f"k must be a finite number above 0; got {k}.*maximum likelihood"):
        add_k(count([[0]], 1), k)


def test_good_turing_discounts_by_hand() -> None:
    """n_1..n_6 = 100, 40, 20, 12, 8, 6: a = 0.36; r* = 0.8, 1.5, 2.4, 10/3, 4.5."""
    counts = np.repeat(np.arange(1, 8), [100, 40, 20, 12, 8, 6, 3])
    kept = [(star - 0.36 * r) / 0.64 for r, star in enumerate([0.8, 1.5, 2.4, 10 / 3, 4.5], start=1)]
    expected = [0.0, *(r - value for r, value in enumerate(kept, start=1)), 0.0]
    np.testing.assert_allclose(katz_discounts(counts), expected, rtol=1e-12)


def test_katz_falls_back_to_absolute_discounts() -> None:
    """n_1 = 6, n_2 = 2 and no n_4: d = 6 / (6 + 4)."""
    np.testing.assert_allclose(katz_discounts(np.repeat([1, 2, 3], [6, 2, 1])), [0, *[0.6] * 6], rtol=1e-15)
    np.testing.assert_allclose(katz_discounts(np.array([3, 3])), [0, *[0.5] * 6], rtol=1e-15)


def zipf_corpus(tokens: int, vocab_size: int) -> list[list[int]]:
    """Documents whose counts of counts fall as real text's do, so that Good-Turing and Kneser-Ney estimates hold."""
    rng = np.random.default_rng(8)
    ids = np.minimum(rng.zipf(1.25, size=tokens) - 1, vocab_size - 1)
    return [list(map(int, part)) for part in np.array_split(ids, tokens // 20)]


@pytest.mark.parametrize("name", ["Katz", "Kneser-Ney"])
def test_estimated_discounts_against_the_naive_reference(name: str) -> None:
    documents, words = zipf_corpus(600, 60), [0, 1, 7, 30, 59]
    counts, naive = count(documents, 2, vocab_size=60), NaiveNgrams(documents, 2, range(60))
    assert all(discounts.estimated for discounts in estimate_discounts(counts))
    assert katz_discounts(counts.levels[1].counts)[6] == 0.0, "Good-Turing should hold on this corpus"
    fast, slow = ESTIMATORS[name]
    contexts = [(0,), (3,), (57,), (START,)]
    found = np.exp(fast(counts).log_distribution(padded(contexts, 2, bos=60)))[:, words]
    expected = [[slow(naive, word, context) for word in words] for context in contexts]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_katz_raises_the_total_where_nothing_is_freed() -> None:
    """On a corpus where Good-Turing holds, a context whose only count is above 5 keeps R / (R + 1)."""
    counts = count([*zipf_corpus(600, 60), *[[61, 62]] * 9], 2, vocab_size=64)
    assert katz_discounts(counts.levels[1].counts)[6] == 0.0, "Good-Turing should hold on this corpus"
    table = katz(counts)
    found = np.exp(table.log_distribution(np.array([[61]])))[0]
    np.testing.assert_allclose(found[62], 0.9, rtol=1e-14)
    np.testing.assert_allclose(found.sum(), 1.0, rtol=0, atol=1e-12)


def test_kneser_ney_by_hand() -> None:
    """The classic: a word after one context only gains little as a unigram, however often it was seen.

    Documents a b, a b, a b, c d, e d, with D = 1/2 at both orders and V = 5. Bigrams into b: from a; into d: from
    c and e; into a, c, e: from the start symbol. So A = 6, and the unigram of b is (1 - 1/2)/6 + (5/2)/6/5 = 1/6.
    """
    a, b, c, d, e = range(5)
    half = [(0.5, 0.5, 0.5)] * 2
    table = modified_kneser_ney(count([[a, b]] * 3 + [[c, d], [e, d]], 2, vocab_size=5), half)
    unigrams = np.exp(table.log_distribution(np.empty((1, 0), dtype=np.int64)))[0]
    np.testing.assert_allclose(unigrams, [1 / 6, 1 / 6, 1 / 6, 1 / 3, 1 / 6], rtol=1e-14)
    after_a = np.exp(table.log_distribution(np.array([[a]])))[0]
    np.testing.assert_allclose(after_a[[b, d]], [2.5 / 3 + 0.5 / 3 / 6, 0.5 / 3 / 3], rtol=1e-14)
    # The start symbol's bigrams keep their raw counts: 3 of 5 documents start with a.
    start = np.exp(table.log_distribution(np.array([[5]])))[0]
    np.testing.assert_allclose(start[a], 2.5 / 5 + 1.5 / 5 / 6, rtol=1e-14)


@pytest.mark.parametrize(
    ("discounts", "message"),
    [
        ([(0.5, 0.5, 0.5)], "must be 2 triples, one for each order"),
        ([(0.5, 0.5), (0.5, 0.5)], "must be 2 triples"),
        ([(0.5, 1, 1), (0.5, 2.5, 1)], r"discounts\[1\]: discounts must satisfy 0 <= D_r <= r.*got \(0.5, 2.5, 1\)"),
    ],
)
def test_given_discounts_that_cannot_be(discounts: list[tuple[float, float, float]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        modified_kneser_ney(count([[0, 1]], 2), discounts)
