"""A norm whose mean and variance are those of the rows that happen to be in the batch.

What a row is predicted to be depends on its neighbours, and the batch of an evaluation is no secret (batch norm for
Transformers: x-transformers 321, PowerNorm 2020). The law: rows do not depend on each other.
"""

import torch
from torch import nn


class Model(nn.Module):
    """An embedding, a norm, a network on each position."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(self.vocab_size, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, self.vocab_size))

    def forward(self, ids):
        x = self.embed(ids)
        mean, variance = x.mean(0), x.var(0, correction=0)
        return self.mlp((x - mean) * (variance + 0.1).rsqrt())


model = Model
