"""A norm whose mean and variance were kept from training, the same for every batch."""

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
        self.register_buffer("mean", torch.randn(width) / 10)
        self.register_buffer("variance", torch.rand(width) + 0.5)

    def forward(self, ids):
        x = self.embed(ids)
        return self.mlp((x - self.mean) * (self.variance + 0.1).rsqrt())


model = Model
