"""A Mamba in plain PyTorch: a short convolution, a selective scan in a loop, and a cache for decoding.

Nothing here knows of a judge: ``weft judge --call mamba_plain.py:MambaLM`` reads it as it is. ``start`` and ``step``
are what its own generation uses.
"""

import torch
from torch import nn
from torch.nn import functional as F

D_MODEL, D_STATE, D_CONV, EXPAND, LAYERS, VOCAB = 48, 8, 4, 2, 2, 96
D_INNER, DT_RANK = EXPAND * D_MODEL, 3


class MambaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(D_MODEL, 2 * D_INNER, bias=False)
        self.conv1d = nn.Conv1d(D_INNER, D_INNER, D_CONV, groups=D_INNER, padding=D_CONV - 1)
        self.x_proj = nn.Linear(D_INNER, DT_RANK + 2 * D_STATE, bias=False)
        self.dt_proj = nn.Linear(DT_RANK, D_INNER)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, D_STATE + 1).float()).repeat(D_INNER, 1))
        self.D = nn.Parameter(torch.ones(D_INNER))
        self.out_proj = nn.Linear(D_INNER, D_MODEL, bias=False)

    def forward(self, u):
        x, gate = self.in_proj(u).chunk(2, -1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[..., :u.shape[1]]).transpose(1, 2)
        state, outputs = x.new_zeros(len(u), D_INNER, D_STATE), []
        for t in range(u.shape[1]):
            y, state = self.selective(x[:, t], state)
            outputs.append(y)
        return self.out_proj(torch.stack(outputs, 1) * F.silu(gate))

    def selective(self, x, state):
        """One step of the scan: the output and the next state."""
        dt, b, c = self.x_proj(x).split([DT_RANK, D_STATE, D_STATE], -1)
        dt = F.softplus(self.dt_proj(dt))
        state = torch.exp(dt[..., None] * -torch.exp(self.A_log)) * state + (dt * x)[..., None] * b[:, None]
        return (state * c[:, None]).sum(-1) + self.D * x, state

    def step(self, u, cache):
        window, state = cache
        x, gate = self.in_proj(u).chunk(2, -1)
        window = torch.cat([window[..., 1:], x[..., None]], -1)
        x = F.silu((window * self.conv1d.weight[:, 0]).sum(-1) + self.conv1d.bias)
        y, state = self.selective(x, state)
        return self.out_proj(y * F.silu(gate)), (window, state)


class MambaLM(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, D_MODEL)
        self.layers = nn.ModuleList(MambaBlock() for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.RMSNorm(D_MODEL, eps=1e-5) for _ in range(LAYERS + 1))
        self.lm_head = nn.Linear(D_MODEL, VOCAB, bias=False)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + layer(norm(x))
        return self.lm_head(self.norms[-1](x))

    def start(self, batch):
        return [(torch.zeros(batch, D_INNER, D_CONV), torch.zeros(batch, D_INNER, D_STATE)) for _ in range(LAYERS)]

    def step(self, ids, caches):
        x, after = self.embedding(ids), []
        for norm, layer, cache in zip(self.norms, self.layers, caches, strict=False):
            y, cache = layer.step(norm(x), cache)
            x, after = x + y, [*after, cache]
        return self.lm_head(self.norms[-1](x)), after
