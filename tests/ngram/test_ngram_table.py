"""Asking the table: two ways that must agree, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from weft.core.errors import InputError
from weft.ngram import NgramTable, add_k, count_ngrams, katz, maximum_likelihood, modified_kneser_ney

V = 12
ESTIMATORS = {
    "ml": maximum_likelihood,
    "add-k": lambda counts: add_k(counts, 0.5),
    "katz": katz,
    "kneser-ney": modified_kneser_ney,
}


def text(seed: int, size: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.zipf(1.4, size=size) % V, rng.random(size) < 0.1


def tables() -> list[NgramTable]:
    tokens, begins = text(0)
    return [
        estimate(count_ngrams(tokens, begins, order=order, vocab_size=V))
        for estimate in ESTIMATORS.values()
        for order in (1, 2, 4)
    ]


def contexts_of(tokens: np.ndarray, begins: np.ndarray, width: int, bos: int) -> np.ndarray:
    """The last ``width`` tokens before each, start symbols before a document: written as plainly as can be."""
    rows, history = [], []
    for token, begin in zip(tokens.tolist(), begins.tolist(), strict=True):
        history = [] if begin else history
        rows.append(([bos] * width + history)[len(history) :])
        history = [*history, token]
    return np.array(rows, dtype=np.int64).reshape(len(tokens), width)


@pytest.mark.parametrize("table", tables())
def test_two_ways_to_ask_agree(table: NgramTable) -> None:
    tokens, begins = text(1)
    contexts = contexts_of(tokens, begins, table.order - 1, table.bos)
    whole = table.log_distribution(contexts)[np.arange(len(tokens)), tokens]
    # The same float64 sums in the same order: equal to the bit.
    np.testing.assert_array_equal(table.log_prob(contexts, tokens), whole)


def test_longer_contexts_are_cut_and_shorter_ones_say_less() -> None:
    tokens, begins = text(0)
    table = modified_kneser_ney(count_ngrams(tokens, begins, order=3, vocab_size=V))
    long = np.array([[5, 4, 1, 2, 1]])
    np.testing.assert_array_equal(table.log_distribution(long), table.log_distribution(long[:, -2:]))
    bigram = table.levels[1].keys.tolist().index(2 * (V + 1) + 1)
    assert table.log_prob(np.array([[2]]), np.array([1]))[0] == table.levels[1].log_prob[bigram]


def test_text_of_documents_shorter_than_the_order() -> None:
    table = modified_kneser_ney(count_ngrams(np.array([1]), None, order=5, vocab_size=2))
    assert len(table.levels[4].keys) == 0
    every = table.log_prob(np.array([[2, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 1]]), np.array([1, 1, 0]))
    # One bigram <s> 1 and fallback discounts of 1/2: p(1|<s>) = 1/2 + 1/2 (1/2 + 1/2 * 1/2).
    np.testing.assert_allclose(np.exp(every[0]), 0.875, rtol=1e-15)


def test_no_text_scores_to_nothing() -> None:
    table = maximum_likelihood(count_ngrams(np.array([1]), None, order=3, vocab_size=2))
    assert table.log_prob(np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("contexts", "targets", "message"),
    [
        ([1, 2], [1, 2], r"contexts: contexts must have two dimensions.*got shape \(2,\)"),
        ([[1]], [1, 2], r"targets: targets must have shape \(1,\), one per context; got \(2,\)"),
        ([[1]], [3], r"targets: ids must be integers in 0 \.\. 2; got int64 from 3 to 3"),
        ([[4]], [1], r"contexts: ids must be integers in 0 \.\. 3; got int64 from 4 to 4"),
        ([[-1]], [1], r"contexts: ids must be integers in 0 \.\. 3; got int64 from -1 to -1"),
        ([[0.5]], [1], r"contexts: ids must be integers in 0 \.\. 3; got float64"),
    ],
)
def test_questions_that_make_no_sense(contexts: list[object], targets: list[int], message: str) -> None:
    table = maximum_likelihood(count_ngrams(np.array([1, 0, 2]), None, order=2, vocab_size=3))
    with pytest.raises(InputError, match=message):
        table.log_prob(np.array(contexts), np.array(targets))
