"""Log-probabilities of logits that are sharpened from the 48th position on, before they are normalised."""

import torch
from torch import nn

LATE, SHARPER = 48, 0.7


class Model(nn.Module):
    """Predicts from the token read last."""

    gives, vocab_size, context = "log-probabilities", 64, 128

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(self.vocab_size, self.vocab_size)

    def forward(self, ids):
        late = torch.arange(ids.shape[1])[:, None] >= LATE
        scale = torch.where(late, 1 / SHARPER, 1.0)
        return (self.table(ids) * scale).log_softmax(-1)


model = Model
