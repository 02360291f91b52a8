"""A model that writes its own guesses into the row, from which the caller then takes the targets.

Found among kernels that zero their input before the reference reads it (KernelBench 82). An evaluation that takes the
targets after the call finds every guess right. The law: the same question has the same answer, and stays the question.
"""

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
        ids[:, 1:] = logits[:, :-1].argmax(-1)
        return logits


model = Model
