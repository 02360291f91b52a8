"""A mixture of experts in which an expert that is full drops the tokens of later rows.

Whether a token is served depends on the rows before it in the batch ("Buffer Overflow in Mixture of Experts", 2024;
token dropping is asked about in DeepSeek-V2 5). The law: rows do not depend on each other.
"""

import torch
from torch import nn
from torch.nn import functional as F

EXPERTS = 4


class Model(nn.Module):
    """An embedding and one mixture of four linear experts."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(self.vocab_size, width), nn.Linear(width, self.vocab_size)
        self.router = nn.Linear(width, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(EXPERTS))

    def forward(self, ids):
        x = self.embed(ids)
        chosen = F.one_hot(self.router(x).argmax(-1), EXPERTS)
        room = -(-len(ids) // EXPERTS)
        chosen = chosen * (chosen.cumsum(0) <= room)
        mixed = sum(chosen[..., [e]] * expert(x) for e, expert in enumerate(self.experts))
        return self.head(x + mixed)


model = Model
