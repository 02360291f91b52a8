"""A long convolution computed by an FFT of twice the row's length, of which the first half is kept."""

import torch
from torch import nn


class Model(nn.Module):
    """An embedding and one long convolution with a decaying filter for each channel."""

    vocab_size, context = 64, 128

    def __init__(self, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(self.vocab_size, width), nn.Linear(width, self.vocab_size)
        self.log_decay = nn.Parameter(torch.linspace(-3, 0, width))

    def forward(self, ids):
        x, length = self.embed(ids), ids.shape[1]
        kernel = torch.exp(-torch.arange(length)[:, None] * self.log_decay.exp())
        points = 2 * length
        spectrum = torch.fft.rfft(x.double(), n=points, dim=1) * torch.fft.rfft(kernel.double(), n=points, dim=0)
        mixed = torch.fft.irfft(spectrum, n=points, dim=1)[:, :length]
        return self.head(x + mixed.float())


model = Model
