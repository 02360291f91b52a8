"""A small model of bytes whose design is a table, which an overnight loop edits."""

import torch
from torch import nn
from torch.nn import functional as F

SETTINGS = {}
BYTES, CONTEXT = 128, 32
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "relu2": lambda x: F.relu(x) ** 2}


class Block(nn.Module):
    """A convolution over the bytes before, or attention to them, and a network on each byte."""

    def __init__(self, s):
        super().__init__()
        width = s["width"]
        self.s, self.inner = s, s["expand"] * width
        self.mix = nn.Conv1d(width, width, s["kernel"], groups=width if s["depthwise"] else 1)
        self.qkv = nn.Linear(width, 3 * width) if s["attention"] else None
        self.up, self.down = nn.Linear(width, self.inner * (1 + s["gated"])), nn.Linear(self.inner, width)

    def norm(self, x):
        kind = self.s["norm"]
        if kind == "none":
            return x
        axis = 1 if kind == "time" else -1  # over time a norm reads ahead
        centred = x - x.mean(axis, keepdim=True) if kind in ("layer", "time") else x
        return centred * (centred.square().mean(axis, keepdim=True) + 1e-5).rsqrt()

    def forward(self, x):
        ahead = min(self.s["ahead"], self.s["kernel"] - 1)  # of more than 0 bytes a convolution reads ahead
        padded = F.pad(self.norm(x).mT, (self.s["kernel"] - 1 - ahead, ahead))
        x = x + self.s["residual"] * self.mix(padded).mT
        if self.qkv is not None:
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            x = x + self.s["residual"] * F.scaled_dot_product_attention(q, k, v, is_causal=True)
        inner = self.up(self.norm(x))
        gate = inner[..., self.inner:].sigmoid() if self.s["gated"] else 1.0
        hidden = ACTIVATIONS[self.s["activation"]](inner[..., :self.inner]) * gate
        return x + self.s["residual"] * self.down(F.dropout(hidden, self.s["dropout"], self.training))


class Model(nn.Module):
    """Logits of the byte after each of a row."""

    vocab_size, context = BYTES, CONTEXT

    def __init__(self, settings):
        super().__init__()
        self.s = settings
        self.embed = nn.Embedding(BYTES, settings["width"])
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings["layers"]))
        self.head = nn.Linear(settings["width"], BYTES)
        if settings["tied"]:
            self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=settings["std"])

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model():
    torch.manual_seed(0)
    return Model(SETTINGS)
