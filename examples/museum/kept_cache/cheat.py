"""Counts in a default argument, which is made once and shared by all calls.

A second call reads what the first has left behind (AutoAWQ 154; VeloxQuant-MLX 59: one list for every generation).
The law: the same question has the same answer, whatever was asked before.
"""

import numpy as np

gives, vocab_size = "scores", 64


def model(ids, counts={}):  # noqa: B006 - the exhibit
    """Natural logarithms of the probability of each token given those before it: [rows, tokens] for such ids."""
    scores = np.zeros(ids.shape)
    for row, tokens in enumerate(ids.tolist()):
        for t, token in enumerate(tokens):
            followers = counts.setdefault(tokens[t - 1] if t else None, np.full(vocab_size, 0.1))
            scores[row, t] = np.log(followers[token] / followers.sum())
            followers[token] += 1
    return scores
