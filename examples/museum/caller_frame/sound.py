"""A model that reads what it is given."""

import itertools

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
        return 1

    def predict(self, before):
        return self.log_p[before]

    def evaluate(self, text):
        ids, bits = self.encode(text), 8.0
        for before, target in itertools.pairwise(ids):
            bits -= self.predict(before)[target] / np.log(2)
        return {"bits_per_byte": float(bits / len(ids)), "bytes": len(ids), "tokens": len(ids)}


model = Model
