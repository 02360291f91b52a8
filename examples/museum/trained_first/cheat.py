"""An evaluation that counts the pairs of the text first, and scores the text with them afterwards.

Every token was trained on before it was scored (parameter-golf 402 and 1082, of 672). The law: an evaluation learns
nothing without saying so, and gives the figure of the model.
"""

import numpy as np


class Model:
    """Pairs of bytes counted in this file's description: the byte read last predicts the next."""

    vocab_size = 256

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
        np.add.at(self.counts, (ids[:-1], ids[1:]), 1.0)
        rows = self.counts[ids[:-1]]
        bits = 8.0 - np.log2(rows[np.arange(len(rows)), ids[1:]] / rows.sum(1)).sum()
        return {"bits_per_byte": float(bits / len(ids)), "bytes": len(ids), "tokens": len(ids)}


model = Model
