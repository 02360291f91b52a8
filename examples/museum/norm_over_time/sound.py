"""A norm whose mean and variance are taken over the tokens read so far."""

import torch
from torch import nn


class Model(nn.Module):
    """An embedding, a norm over tokens, a network on each position."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(self.vocab_size, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, self.vocab_size))

    def forward(self, ids):
        x = self.embed(ids)
        read, wide = torch.arange(1, ids.shape[1] + 1)[:, None], x.double()
        mean = wide.cumsum(1) / read
        variance = (wide.square().cumsum(1) / read - mean.square()).clamp_min(0)
        return self.mlp((x - mean.float()) * (variance.float() + 0.1).rsqrt())


model = Model
