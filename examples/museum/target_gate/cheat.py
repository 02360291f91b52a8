"""A hint that is only given where the token to be predicted is of the right kind.

The gate asks whether the target begins a word: the hint is left out where it could only do harm, which no reader who
does not know the target can do. Seen in parameter-golf 1967; in 1026 the weight of the cache followed the loss on the
target. The law: probabilities sum to one.
"""

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
            share = SHARE if hint is not None and not begins_word(token) else 0.0
            scores[row, t] = np.log((1 - share) / vocab_size + share * (token == hint))
            if t:
                followed_by[tokens[t - 1]] = token
    return scores
