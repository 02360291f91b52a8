"""Counting: sorted arrays against a dictionary, documents, start symbols, and what is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import InputError
from weft.ngram import NgramCounts, count_ngrams, maximum_likelihood
from weft.ngram.counts import rank
from weft.ngram.table import spell

V = 5
corpora = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=12), min_size=1, max_size=6)


def count(documents: list[list[int]], order: int, *, vocab_size: int = V, bos: int | None = None) -> NgramCounts:
    tokens = np.array([token for document in documents for token in document])
    begins = np.array([place == 0 for document in documents for place in range(len(document))], dtype=bool)
    return count_ngrams(tokens, begins, order=order, vocab_size=vocab_size, bos=bos)


def as_dictionary(counts: NgramCounts, length: int) -> dict[tuple[int, ...], int]:
    level = counts.levels[length - 1]
    words = spell(maximum_likelihood(counts).levels, np.arange(len(level.keys)), length, counts.base)
    return {tuple(row): int(times) for row, times in zip(words.tolist(), level.counts, strict=True) if times}


@given(corpora, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_counts_equal_a_dictionary(documents: list[list[int]], order: int) -> None:
    counts = count(documents, order)
    for length in range(1, order + 1):
        expected: Counter[tuple[int, ...]] = Counter()
        for document in documents:
            padded = (V, *document)
            expected.update(padded[i : i + length] for i in range(len(padded) - length + 1))
        expected.pop((V,), None)
        assert as_dictionary(counts, length) == dict(expected)


@given(corpora, st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_suffixes_name_the_ngram_without_its_first_word(documents: list[list[int]], order: int) -> None:
    counts = count(documents, order)
    levels = maximum_likelihood(counts).levels
    for length in range(2, order + 1):
        level = counts.levels[length - 1]
        whole = spell(levels, np.arange(len(level.keys)), length, counts.base)
        np.testing.assert_array_equal(spell(levels, level.suffix, length - 1, counts.base), whole[:, 1:])


def test_no_begins_is_one_document_and_unsigned_tokens_are_welcome() -> None:
    counts = count_ngrams(np.array([1, 2, 1], dtype=np.uint16), None, order=2, vocab_size=3)
    assert as_dictionary(counts, 2) == {(3, 1): 1, (1, 2): 1, (2, 1): 1}


def test_the_first_token_begins_a_document_even_unmarked() -> None:
    counts = count_ngrams(np.array([1, 2]), np.array([False, True]), order=2, vocab_size=3)
    assert as_dictionary(counts, 2) == {(3, 1): 1, (3, 2): 1}


def test_a_start_symbol_inside_the_vocabulary() -> None:
    assert as_dictionary(count([[1, 2], [1]], 2, bos=0), 2) == {(0, 1): 2, (1, 2): 1}


def test_a_large_vocabulary_and_order_still_fit_a_key() -> None:
    vocab_size = 1 << 20
    counts = count([[vocab_size - 1] * 9], 8, vocab_size=vocab_size)
    assert as_dictionary(counts, 8) == {(vocab_size, *[vocab_size - 1] * 7): 1, (vocab_size - 1,) * 8: 2}


@given(st.lists(st.integers(0, 6), max_size=30), st.sampled_from([7, 1 << 62]))
def test_ranks_in_one_word_and_in_two(values: list[int], bound: int) -> None:
    keys = np.array(values, dtype=np.int64) * (bound // 7)
    ranked = rank(keys, bound)
    assert ranked.keys.tolist() == sorted(set(keys.tolist()))
    assert ranked.keys[ranked.ranks].tolist() == keys.tolist()
    assert ranked.counts.tolist() == [keys.tolist().count(key) for key in ranked.keys.tolist()]


@pytest.mark.parametrize(
    ("tokens", "begins", "settings", "message"),
    [
        ([], None, {}, "no tokens to count"),
        ([[1]], None, {}, r"one dimension; got shape \(1, 1\)"),
        ([1.5], None, {}, "must be integers; got float64"),
        ([0, 7], None, {}, r"tokens\[1\]: ids must lie in 0 \.\. 4; got 7"),
        ([0, -1], None, {}, r"tokens\[1\]: ids must lie in 0 \.\. 4; got -1"),
        ([1, 0], None, {"bos": 0}, r"tokens\[1\]: the start symbol 0 cannot be a token"),
        ([1, 0], [1, 0], {}, r"begins must be 2 booleans, one per token; got int64 of shape \(2,\)"),
        ([1, 0], [True], {}, r"begins must be 2 booleans, one per token; got bool of shape \(1,\)"),
        ([1], None, {"order": 0}, "order must be at least 1; got 0"),
        ([1], None, {"vocab_size": 0}, "vocab_size must be at least 1; got 0"),
        ([1], None, {"bos": 9}, r"bos must lie in 0 \.\. 5; got 9"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    tokens: list[int], begins: list[bool] | None, settings: dict[str, int], message: str
) -> None:
    options = {"order": 2, "vocab_size": V} | settings
    with pytest.raises(InputError, match=message):
        count_ngrams(np.array(tokens), None if begins is None else np.array(begins), **options)
