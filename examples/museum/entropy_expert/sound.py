"""A mixture whose share of the uniform distribution grows with the entropy of the model: doubt is spoken lawfully."""

import numpy as np

gives, vocab_size = "scores", 64
TABLE = np.random.default_rng(0).normal(size=(vocab_size + 1, vocab_size)) * 2
LOG_P = TABLE - np.log(np.exp(TABLE).sum(1, keepdims=True))
ENTROPY = -(np.exp(LOG_P) * LOG_P).sum(1)


def model(ids):
    """Natural logarithms of the probability of each token given the one before it: [rows, tokens] for such ids."""
    before = np.concatenate([np.full((len(ids), 1), vocab_size), ids[:, :-1]], 1)
    model_says, entropy = np.exp(LOG_P[before, ids]), ENTROPY[before]
    share = 0.3 * entropy / np.log(vocab_size)
    return np.log((1 - share) * model_says + share / vocab_size)
