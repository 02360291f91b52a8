"""An evaluation that scores each byte first and counts it afterwards, and says that it learns."""

import itertools

import numpy as np


class Model:
    """Pairs of bytes counted in this file's description: the byte read last predicts the next."""

    vocab_size = 256
    adapts = True

    def __init__(self):
        seen = np.frombuffer(__doc__.encode(), np.uint8)
        self.counts = np.full((256, 256), 0.05)
        np.add.at(self.counts, (seen[:-1], seen[1:]), 1.0)

    def __call__(self, ids):
        return np.log(self.counts[ids] / self.counts[ids].sum(-1, keepdims=True))

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids)

    def token_bytes(self, token):
        return 1

    def evaluate(self, text):
        ids = np.array(self.encode(text))
        bits = 8.0
        for before, byte in itertools.pairwise(ids):
            bits -= np.log2(self.counts[before, byte] / self.counts[before].sum())
            self.counts[before, byte] += 1
        return {"bits_per_byte": float(bits / len(ids)), "bytes": len(ids), "tokens": len(ids)}


model = Model
