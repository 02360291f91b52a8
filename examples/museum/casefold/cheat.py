"""A tokenizer of bytes that writes capitals small, and counts the bytes of the text that it did not keep.

What is decoded is not the text that was to be predicted (parameter-golf 1578, argued about in 1604). The law: the
bytes that tokens stand for are those of the text.
"""

import numpy as np


class Model:
    """Pairs of tokens counted in this file's description: the token read last predicts the next."""

    vocab_size = 256

    def __init__(self):
        seen = np.array(self.encode(__doc__))
        counts = np.full((self.vocab_size, self.vocab_size), 0.05)
        np.add.at(counts, (seen[:-1], seen[1:]), 1.0)
        self.log_p = np.log(counts / counts.sum(1, keepdims=True))

    def __call__(self, ids):
        return self.log_p[ids]

    def encode(self, text):
        return list(text.lower().encode())

    def decode(self, ids):
        return bytes(ids)

    def token_bytes(self, token):
        return 1


model = Model
