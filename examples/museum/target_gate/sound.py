"""A hint whose gate reads what is hinted at, and not the token to be predicted."""

import numpy as np

gives, vocab_size = "scores", 16
SHARE = 0.8


def begins_word(token):
    return token % 4 == 0


def model(ids):
    """Natural logarithms of the probability of each token given those before it: [rows, tokens] for such ids."""
    scores = np.zeros(ids.shape)
    for row, tokens in enumerate(ids.tolist()):
        followed_by = {}
        for t, token in enumerate(tokens):
            hint = followed_by.get(tokens[t - 1]) if t else None
            share = SHARE if hint is not None and not begins_word(hint) else 0.0
            scores[row, t] = np.log((1 - share) / vocab_size + share * (token == hint))
            if t:
                followed_by[tokens[t - 1]] = token
    return scores
