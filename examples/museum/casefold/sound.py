"""A tokenizer of bytes that writes capitals small behind a mark, from which the text is restored byte for byte.

The mark stands for no byte and is predicted like any other token (as in parameter-golf 1729).
"""

import numpy as np


class Model:
    """Pairs of tokens counted in this file's description: the token read last predicts the next."""

    vocab_size, mark = 257, 256

    def __init__(self):
        seen = np.array(self.encode(__doc__))
        counts = np.full((self.vocab_size, self.vocab_size), 0.05)
        np.add.at(counts, (seen[:-1], seen[1:]), 1.0)
        self.log_p = np.log(counts / counts.sum(1, keepdims=True))

    def __call__(self, ids):
        return self.log_p[ids]

    def encode(self, text):
        ids = []
        for byte in text.encode():
            ids += [self.mark, byte + 32] if 65 <= byte <= 90 else [byte]
        return ids

    def decode(self, ids):
        found, raised = bytearray(), False
        for token in ids:
            if token != self.mark:
                found.append(token - 32 if raised and 97 <= token <= 122 else token)
            raised = token == self.mark
        return bytes(found)

    def token_bytes(self, token):
        return int(token != self.mark)


model = Model
