"""Dropout called as a function, which is on unless it is told otherwise.

Evaluations were made so until nanoGPT 240 (torch-rnn 31 suspects it). The law: the same question has the same
answer.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    """An embedding and a network on each position, with dropout between."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(self.vocab_size, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, self.vocab_size))

    def forward(self, ids):
        return self.mlp(F.dropout(self.embed(ids), 0.1))


model = Model
