"""A bias on the logits that moves after each token that has been scored, and is scored before it moves."""

import torch
from torch import nn
from torch.nn import functional as F

RATE = 0.5


class Model(nn.Module):
    """Predicts from the token read last, with a bias that adapts to the row."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Embedding(self.vocab_size, width), nn.Linear(width, self.vocab_size))

    def forward(self, ids):
        logits = self.body(ids)
        surprise = F.one_hot(ids[:, 1:], self.vocab_size) - logits.softmax(-1)[:, :-1]
        moved = F.pad(surprise.double().cumsum(1), (0, 0, 1, 0)) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return logits + 4 * RATE * moved.float()


model = Model
