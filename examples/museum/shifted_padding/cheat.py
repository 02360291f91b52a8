"""Rows that are moved to a common end, with positions that are counted from the beginning of the longest.

A short row is read at other positions than alone (nnsight 673, unsloth 3795; padding that is attended to:
TransformerLens 1005). The law: rows do not depend on each other, nor on padding.
"""

import torch
from torch import nn


class Model(nn.Module):
    """An embedding of tokens and positions, and a network on each position. Rows may be padded with 0 on the right."""

    vocab_size, context, padding = 64, 128, 0

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(self.vocab_size, width)
        self.rates = nn.Parameter(torch.logspace(0, -3, width))
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, self.vocab_size))

    def forward(self, ids):
        position = torch.arange(ids.shape[1]).expand_as(ids)
        lengths = ((ids != self.padding) * (position + 1)).amax(1)
        position = position + (lengths.amax() - lengths)[:, None]
        return self.mlp(self.embed(ids) + torch.sin(position[..., None] * self.rates))


model = Model
