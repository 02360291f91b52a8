"""A model that returns its guesses and leaves the row as it was."""

import torch
from torch import nn


class Model(nn.Module):
    """Predicts from the token read last."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Embedding(self.vocab_size, width), nn.Linear(width, self.vocab_size))

    def forward(self, ids):
        logits = self.body(ids)
        guesses = ids.clone()
        guesses[:, 1:] = logits[:, :-1].argmax(-1)
        return logits, guesses


model = Model
