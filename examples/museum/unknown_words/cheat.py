"""A tokenizer that leaves out what it does not know.

Unknown words are not predicted and are counted all the same (modlm 4, kenlm 67, theanolm 13). The law: the bytes that
tokens stand for are those of the text.
"""

import numpy as np

KNOWN = " abcdefghijklmnopqrstuvwxyz.,;:!?'-\n0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Model:
    """Pairs of tokens counted in this file's description: the token read last predicts the next."""

    vocab_size = len(KNOWN)

    def __init__(self):
        seen = np.array(self.encode(__doc__))
        counts = np.full((self.vocab_size, self.vocab_size), 0.05)
        np.add.at(counts, (seen[:-1], seen[1:]), 1.0)
        self.log_p = np.log(counts / counts.sum(1, keepdims=True))

    def __call__(self, ids):
        return self.log_p[ids]

    def encode(self, text):
        return [KNOWN.index(letter) for letter in text if letter in KNOWN]

    def decode(self, ids):
        return "".join(KNOWN[token] for token in ids)

    def token_bytes(self, token):
        return 1


model = Model
