"""Rotary positions of one base, whatever the length of the row."""

import torch
from torch import nn

TRAINED, BASE = 16, 100.0


def turned(x, position, length):
    """``x`` [..., tokens, width] turned by its position, for a row of ``length`` tokens."""
    base = BASE
    half = x.shape[-1] // 2
    angle = position[:, None] * base ** (-torch.arange(half) / half)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


class Model(nn.Module):
    """One layer of attention with rotary positions."""

    vocab_size, context = 64, 128

    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(self.vocab_size, width), nn.Linear(width, self.vocab_size)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, ids):
        x, length = self.embed(ids), ids.shape[1]
        places = torch.arange(length)
        scores = turned(self.query(x), places, length) @ turned(self.key(x), places, length).mT
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.head(x + scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x))

    def start(self, batch):
        nothing = torch.zeros(batch, 0, self.embed.embedding_dim)
        return nothing, nothing

    def step(self, ids, state):
        x = self.embed(ids)[:, None]
        length = state[0].shape[1] + 1
        place = torch.tensor([length - 1])
        keys = torch.cat([state[0], turned(self.key(x), place, length)], 1)
        values = torch.cat([state[1], self.value(x)], 1)
        weights = (turned(self.query(x), place, length) @ keys.mT).softmax(-1)
        return self.head(x + weights @ values)[:, 0], (keys, values)


model = Model
