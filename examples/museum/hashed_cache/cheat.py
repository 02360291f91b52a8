"""A cache of pairs whose buckets are counted for the target alone, so that its probabilities sum to far more than one.

Two tables count hashed contexts and hashed pairs. Where many keys share a bucket the quotient of the two counts nears
one for every token, seen or not. Seen in parameter-golf 886, 677 and 1147. The law: probabilities sum to one.
"""

import numpy as np

gives, vocab_size = "scores", 64
BUCKETS, SHARE = 32, 0.5


def bucket(context, token):
    return (context * 7919 + token * 104729 + context * token) % BUCKETS


def model(ids):
    """Natural logarithms of the probability of each token given those before it: [rows, tokens] for such ids."""
    scores = np.zeros(ids.shape)
    for row, tokens in enumerate(ids.tolist()):
        contexts, pairs = np.zeros(BUCKETS), np.zeros(BUCKETS)
        for t, token in enumerate(tokens):
            context = tokens[t - 1] if t else vocab_size
            at = bucket(context, token)
            before = contexts[bucket(context, 0)]
            cached = min(pairs[at] / before, 1.0) if before else 1 / vocab_size
            contexts[bucket(context, 0)] += 1
            scores[row, t] = np.log((1 - SHARE) / vocab_size + SHARE * cached)
            pairs[at] += 1
    return scores
