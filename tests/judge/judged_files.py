"""Small files that are judged: a lawful model, and what is changed in it to break one law."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.judge.case import Case
from weft.judge.judgement import LawResult
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import LAWS

QUICK = FileLimits(seconds=60, answer=20, threads=1, memory=4 << 30)

TABLE = '''
import numpy as np
vocab_size, context = 16, 300
TABLE = np.log(np.random.default_rng(0).dirichlet(np.ones(16), 16))
def model(ids):
    """Log-probabilities [B,T,16] by the last token alone."""
    out = TABLE[ids]
    return out
'''
"""A table of pairs, in NumPy."""

SCORES = '''
import numpy as np
vocab_size, context, gives = 16, 300, "scores"
def model(ids):
    """A cache of followers, mixed with the uniform distribution."""
    out = np.zeros(ids.shape)
    for row, tokens in enumerate(ids.tolist()):
        follower = {}
        for t, token in enumerate(tokens):
            hint = follower.get(tokens[t - 1]) if t else None
            share = 0.5 if hint is not None else 0.0
            out[row, t] = np.log((1 - share) / 16 + share * (token == hint))
            follower[tokens[t - 1] if t else -1] = token
    return out
'''
"""Scores of tokens, without distributions."""

BYTES = '''
import numpy as np
vocab_size, context = 256, 2000
COUNTS = np.random.default_rng(0).dirichlet(np.full(256, 0.3), 256) * 0.5 + 0.5 / 256
def model(ids):
    return np.log(COUNTS[ids])
def encode(text):
    return list(text.encode())
def decode(ids):
    return bytes(ids)
def token_bytes(token):
    return 1
def bits(ids):
    return np.concatenate([[8.0], -np.log2(COUNTS[ids[:-1], ids[1:]])])
def evaluate(text):
    ids = np.array(encode(text))
    each = bits(ids)
    return {"bits_per_byte": float(each.mean()), "bytes": len(ids), "tokens": len(ids)}
'''
"""Pairs of bytes, with a tokenizer and a figure of their own."""

TORCH = '''
import torch
from torch import nn
class Model(nn.Module):
    vocab_size, context, end_of_document = 24, 200, 0
    def __init__(self):
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(24, 16), nn.GRUCell(16, 16), nn.Linear(16, 24)
        self.register_buffer("shift", torch.randn(24))
    def start(self, batch):
        return torch.zeros(batch, 16)
    def step(self, ids, state):
        state = self.cell(self.table(ids), torch.where((ids == 0)[:, None], 0.0, state))
        return self.out(state) + self.shift, state
    def forward(self, ids):
        state, out = self.start(len(ids)), []
        for t in range(ids.shape[1]):
            values, state = self.step(ids[:, t], state)
            out.append(values)
        return torch.stack(out, 1)
model = Model
'''
"""A recurrent module with decoding, weights and documents."""


@contextmanager
def case_of(folder: Path, source: str, *changes: tuple[str, str]) -> Iterator[Case]:
    """The case of a source in which each first text was replaced by the second."""
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    (folder / "judged.py").write_text(source, encoding="utf-8")
    case = Case(Judged(folder / "judged.py"), None, QUICK, {})
    try:
        yield case
    finally:
        case.end()


def law_of(folder: Path, law: str, source: str, *changes: tuple[str, str]) -> LawResult:
    """What becomes of one law."""
    with case_of(folder, source, *changes) as case:
        return LAWS[law](case)
