"""A random mask on the weights that is a plain attribute, which the saved model lacks.

The loaded model draws another mask, silently (pyro 1839; what is saved and what is not: pytorch 18056). The law:
saved and loaded, a model is the same.
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Model(nn.Module):
    """An embedding and a linear layer of which half of the weights are masked."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        self.embed, self.head = nn.Embedding(self.vocab_size, width), nn.Linear(width, self.vocab_size)
        self.mask = (torch.rand(self.vocab_size, width) < 0.5).float()

    def forward(self, ids):
        return F.linear(self.embed(ids), self.head.weight * self.mask, self.head.bias)


model = Model
