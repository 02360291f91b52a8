"""A cache of hashed pairs that reads the counts of every token and divides by their sum before it is mixed in.

Collisions make it a worse cache, and cannot make it more than a distribution.
"""

import numpy as np

gives, vocab_size = "scores", 64
BUCKETS, SHARE = 32, 0.5


def bucket(context, token):
    return (context * 7919 + token * 104729 + context * token) % BUCKETS


def model(ids):
    """Natural logarithms of the probability of each token given those before it: [rows, tokens] for such ids."""
    scores, every = np.zeros(ids.shape), np.arange(vocab_size)
    for row, tokens in enumerate(ids.tolist()):
        pairs = np.zeros(BUCKETS)
        for t, token in enumerate(tokens):
            context = tokens[t - 1] if t else vocab_size
            at = bucket(context, token)
            counts = pairs[bucket(context, every)] + 0.1
            cached = counts[token] / counts.sum()
            scores[row, t] = np.log((1 - SHARE) / vocab_size + SHARE * cached)
            pairs[at] += 1
    return scores
