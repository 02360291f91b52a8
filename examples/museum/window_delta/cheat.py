"""A bias on the logits that is fitted, window by window, to the very tokens that are then scored.

The predictions of one position change with the target of every other: 240 of 240 pairs tested in parameter-golf
1240, of the method that reached 0.93 in 1229. The law: a prediction does not depend on later tokens.
"""

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
        delta = torch.zeros(len(ids), 1, self.vocab_size)
        for _ in range(4):
            surprise = F.one_hot(ids[:, 1:], self.vocab_size) - (logits + delta).softmax(-1)[:, :-1]
            delta = delta + RATE * surprise.sum(1, keepdim=True) / max(ids.shape[1] - 1, 1)
        return logits + delta


model = Model
