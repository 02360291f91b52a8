"""A mixture of experts in which each expert takes the tokens of the row that it likes best.

Whether a token is served depends on those that come later (expert choice: Zhou et al. 2022; asked in OLMoE 46 and
MoSA 3). The law: a prediction does not depend on later tokens.
"""

import torch
from torch import nn

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
        likes = self.router(x).softmax(-1)
        taken = likes.topk(-(-ids.shape[1] // EXPERTS), dim=1).indices
        served = torch.zeros_like(likes).scatter(1, taken, 1.0)
        mixed = sum((served * likes)[..., [e]] * expert(x) for e, expert in enumerate(self.experts))
        return self.head(x + 4 * mixed)


model = Model
