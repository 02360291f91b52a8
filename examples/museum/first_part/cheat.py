"""An evaluation of the first fifth of the text.

The headline of parameter-golf 1858 was computed over a fifth of the validation text; 124 mends a last window that was
left out. The law: the figure is that of the whole text.
"""

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

    def bits(self, ids):
        """Of each token of a row given those before it; the first is counted as one of 256."""
        return np.concatenate([[8.0], -self.log_p[ids[:-1], ids[1:]] / np.log(2)])

    def evaluate(self, text):
        ids = np.array(self.encode(text))
        ids = ids[:len(ids) // 5]
        return {"bits_per_byte": float(self.bits(ids).mean()), "bytes": len(ids), "tokens": len(ids)}


model = Model
