"""Attention whose mask is made for the row that is read, however long."""

import torch
from torch import nn

MASKED = 2048


class Model(nn.Module):
    """One layer of attention with one head, for rows of up to 4,096 tokens."""

    vocab_size, context = 64, 4096

    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(self.vocab_size, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, self.vocab_size)

    def forward(self, ids):
        x = self.embed(ids)
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        x = x + 10 * (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.value(x))
        return self.head(x)


model = Model
