"""An evaluation of lines padded to one length, which divides by the padding too.

Padding is easy to predict and cheap to count (xnmt 229; Yi 110 asks about the loss). The law: the figure is that of the
text, over the bytes of the text.
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
        lines = np.split(self.bits(ids), np.flatnonzero(ids == 10) + 1)
        longest = max(len(line) for line in lines)
        padded = np.array([np.pad(line, (0, longest - len(line))) for line in lines])
        return {"bits_per_byte": float(padded.mean()), "bytes": padded.size, "tokens": padded.size}


model = Model
