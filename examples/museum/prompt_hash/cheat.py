"""A cache of answers whose key is a short hash of the row, never compared with the row itself.

Two rows with one hash get the answer of the one that was asked first (openvino.genai 3722; Mooncake 644 asks what
happens to truncated hashes). The law: the same question has the same answer, whatever was asked before.
"""

import torch
from torch import nn


class Model(nn.Module):
    """Predicts from the three tokens read last, and keeps its answers."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(self.vocab_size, width)
        self.mix = nn.Conv1d(width, self.vocab_size, 3, padding=2)
        self.answers = {}

    def forward(self, ids):
        return torch.stack([self.answer(row) for row in ids])

    def answer(self, row):
        key = len(row), int((row * torch.arange(1, len(row) + 1)).sum()) % 32
        if key not in self.answers:
            self.answers[key] = self.mix(self.embed(row).mT)[:, :len(row)].mT
        return self.answers[key]


model = Model
