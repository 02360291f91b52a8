"""A table of how many bytes a token stands for, made of the tokens' own bytes."""

import numpy as np


class Model:
    """Pairs of bytes counted in this file's description: the byte read last predicts the next."""

    vocab_size = 256

    def __init__(self):
        seen = np.frombuffer(__doc__.encode(), np.uint8)
        counts = np.full((256, 256), 0.05)
        np.add.at(counts, (seen[:-1], seen[1:]), 1.0)
        self.log_p = np.log(counts / counts.sum(1, keepdims=True))

    def __call__(self, ids):
        return self.log_p[ids]

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids)

    def token_bytes(self, token):
        return len(bytes([token]))


model = Model
