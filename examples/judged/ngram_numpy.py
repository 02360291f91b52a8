"""An interpolated trigram of bytes in NumPy, with absolute discounting: a function from ids to log-probabilities.

Nothing here knows of a judge: ``weft judge --call ngram_numpy.py:log_probabilities`` reads it as it is.
"""

from pathlib import Path

import numpy as np

V, DISCOUNT = 256, 0.75
TEXT = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int64)  # any text: here its own


def discounted(counts, lower):
    """Counts [contexts, V], discounted and interpolated with the distributions ``lower`` that back off from them."""
    total, seen = counts.sum(-1, keepdims=True), (counts > 0).sum(-1, keepdims=True)
    safe = np.maximum(total, 1)
    share = np.where(total > 0, DISCOUNT * seen / safe, 1.0)
    return np.maximum(counts - DISCOUNT, 0) / safe + share * lower


def fitted():
    """The unigram [V], the bigram [V,V], and the counts of the trigram by its first two bytes."""
    unigram = discounted(np.bincount(TEXT, minlength=V)[None].astype(float), 1 / V)[0]
    pairs = np.zeros((V, V))
    np.add.at(pairs, (TEXT[:-1], TEXT[1:]), 1)
    triples = {}
    for first, second, third in zip(TEXT[:-2].tolist(), TEXT[1:-1].tolist(), TEXT[2:].tolist(), strict=True):
        triples.setdefault((first, second), np.zeros(V))[third] += 1
    return discounted(pairs, unigram), triples


BIGRAM, TRIPLES = fitted()


def log_probabilities(ids):
    """Natural logarithms of the probabilities of the byte after each, [rows, bytes, 256]."""
    found = BIGRAM[ids]
    for row, line in enumerate(ids.tolist()):
        for t in range(1, len(line)):
            counts = TRIPLES.get((line[t - 1], line[t]))
            if counts is not None:
                found[row, t] = discounted(counts, BIGRAM[line[t]])
    return np.log(found)
