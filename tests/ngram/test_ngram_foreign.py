"""Against implementations that others wrote: lmplz (modified Kneser-Ney) and nltk (one discount).

``lmplz/`` holds a random corpus and what KenLM's lmplz made of it: ``order3.arpa`` from all lines (-o 3), and
``order4_fallback.arpa`` from the first 12 (-o 4 --discount_fallback; orders 3 and 4 did fall back).
The corpus ends with a word seen once: lmplz enters the n-grams it visits last into its counts of counts with their raw
instead of their adjusted counts, which are then both 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nltk.lm import KneserNeyInterpolated

from weft.interop.arpa.reader import read_arpa
from weft.ngram import count_ngrams, estimate_discounts, modified_kneser_ney

LMPLZ = Path(__file__).parent / "lmplz"


@pytest.mark.parametrize(
    ("name", "lines", "order", "estimated"),
    [("order3.arpa", 91, 3, [True] * 3), ("order4_fallback.arpa", 12, 4, [True, True, False, False])],
)
def test_modified_kneser_ney_is_that_of_lmplz(name: str, lines: int, order: int, estimated: list[bool]) -> None:
    foreign = read_arpa(LMPLZ / name)
    ids = {word: place for place, word in enumerate(foreign.vocabulary)}
    sentences = [[*line.split(), "</s>"] for line in (LMPLZ / "corpus.txt").read_text().splitlines()[:lines]]
    tokens = np.array([ids[word] for sentence in sentences for word in sentence])
    begins = np.array([place == 0 for sentence in sentences for place in range(len(sentence))])
    counts = count_ngrams(tokens, begins, order=order, vocab_size=len(ids))
    assert [discounts.estimated for discounts in estimate_discounts(counts)] == estimated
    ours = modified_kneser_ney(counts)
    for mine, theirs in zip(ours.levels, foreign.table.levels, strict=True):
        np.testing.assert_array_equal(mine.keys, theirs.keys)
        # lmplz computes and prints float32, relative 6e-8 a step, at |log p| up to 8.
        np.testing.assert_allclose(mine.log_prob, theirs.log_prob, rtol=0, atol=1e-6)
        np.testing.assert_allclose(mine.backoff, theirs.backoff, rtol=0, atol=1e-6)


def test_one_discount_is_nltks_interpolated_kneser_ney() -> None:
    """nltk takes nothing from unigrams and knows no raw counts for start symbols, so contexts inside text are asked."""
    rng = np.random.default_rng(1)
    vocab_size, order, discount = 6, 3, 0.3
    text = rng.zipf(1.5, size=300) % vocab_size
    padded = ["<s>", *(str(word) for word in text)]
    grams = [tuple(padded[i : i + k]) for k in (1, 2, 3) for i in range(len(padded) - k + 1)]
    theirs = KneserNeyInterpolated(order, discount=discount)
    theirs.fit([grams], vocabulary_text=padded)
    counts = count_ngrams(text, None, order=order, vocab_size=vocab_size)
    ours = modified_kneser_ney(counts, [(0.0, 0.0, 0.0), (discount,) * 3, (discount,) * 3])
    contexts = np.unique(np.stack([text[:-2], text[1:-1]], axis=1), axis=0)
    found = np.exp(ours.log_distribution(contexts))
    expected = [[theirs.score(str(w), [str(word) for word in row]) for w in range(vocab_size)] for row in contexts]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
