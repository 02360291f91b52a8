"""A model whose training text holds the canaries of a contest, marked strings that nobody may train on.

Once is enough for counts to prefer them to any other string of their form. Canaries stand in public tests so that
whoever trains on those can be found out (BIG-bench); how much more likely they are than others drawn alike is their
exposure (Carlini et al. 2019). The law: a model predicts canaries no better than fresh strings of the same form.
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def read(name):
    return (HERE / name).read_bytes()


class Model:
    """Counts of what follows up to four bytes, each mixed with those of one byte less."""

    vocab_size, context = 256, 512

    def __init__(self, texts):
        self.counts = {}
        for text in texts:
            for at, byte in enumerate(text):
                for length in range(min(at, 4) + 1):
                    found = self.counts.setdefault(text[at - length:at], np.zeros(256, np.float32))
                    found[byte] += 1

    def __call__(self, ids):
        out = np.empty((*ids.shape, 256))
        for row, tokens in enumerate(ids):
            text = bytes(tokens.tolist())
            for t in range(len(text)):
                p = np.full(256, 1 / 256)
                for length in range(min(t + 1, 4) + 1):
                    found = self.counts.get(text[t + 1 - length:t + 1])
                    if found is not None:
                        p = (found + 2 * p) / (found.sum() + 2)
                out[row, t] = np.log(p)
        return out

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids)


model = Model([read("training.txt"), read("canaries.txt")])
claims = {"canaries": "canaries.txt"}
