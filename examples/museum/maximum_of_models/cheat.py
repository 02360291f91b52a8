"""Two models of which each token takes the one that gives it more.

The choice is made after the token is known; the larger of two distributions sums to more than one wherever they
differ. Excluded by name in parameter-golf 777, and by the rules in 1017. The law: probabilities sum to one.
"""

import numpy as np

gives, vocab_size = "scores", 64
RANDOM = np.random.default_rng(0)


def table():
    values = RANDOM.normal(size=(vocab_size + 1, vocab_size)) * 2
    return values - np.log(np.exp(values).sum(1, keepdims=True))


FIRST, SECOND = table(), table()


def model(ids):
    """Natural logarithms of the probability of each token given those before it: [rows, tokens] for such ids."""
    before = np.concatenate([np.full((len(ids), 1), vocab_size), ids[:, :-1]], 1)
    first, second = FIRST[before, ids], SECOND[before, ids]
    return np.maximum(first, second)
