"""The gated recurrent unit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from weft.core.declarations import HasInferenceForm
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.mixers.recurrent import Recurrent, RecurrentConfig
from weft.ops.gru_scan import gru_scan


@register
class GRUConfig(RecurrentConfig):
    """A gated recurrent unit whose reset gate acts after the recurrent product."""

    kind: ClassVar[str] = "gru"
    about = replace(RecurrentConfig.about,
        title="GRU", source="Cho et al. 2014; Chung et al. 2014; the reset gate as in cuDNN and PyTorch",
        equation=(r"r = \sigma(W_r x_t + U_r h_{t-1} + b_r), \quad z = \sigma(W_z x_t + U_z h_{t-1} + b_z), \quad n = "
                  r"\tanh(W_n x_t + b_n + r \odot (U_n h_{t-1} + c_n)), \quad h_t = (1 - z) \odot n + z \odot h_{t-1}"),
        differs=(("lstm", "two gates and no cell: its state is half as large."),
                 ("elman", "gates decide what is kept.")))

    def build(self, dims: Dims) -> GRU:
        return GRU(dims.d_model, self.d_hidden, self.bias)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(d_hidden=5, bias=False)]


class GRU(Recurrent, HasInferenceForm):
    """The GRU, h_0 = 0, s the sigmoid:

        r = s(W_r x_t + U_r h_{t-1} + b_r)   z = s(W_z x_t + U_z h_{t-1} + b_z)
        n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + c_n))
        h_t = (1 - z) n + z h_{t-1}

    Gates are stacked in the order r, z, n (PyTorch's). State: h, d_hidden numbers a row. Cho et al. 2014, eq. 8,
    multiply r with h_{t-1} before U_n; this is the later form, which needs one product a step and is what published
    weights use. b_r and b_z are one bias each, where PyTorch's nn.GRU adds two.
    """

    gates = 3

    def __init__(self, d_model: int, d_hidden: int | None = None, bias: bool = True) -> None:
        super().__init__(d_model, d_hidden, bias)
        bound = 1 / math.sqrt(self.d_hidden)
        self.recurrent_bias = nn.Parameter(torch.empty(self.d_hidden).uniform_(-bound, bound)) if bias else None

    def opened(self) -> GRU:
        return self.with_map()

    def inference(self) -> nn.Module:
        return self.with_matrix()

    def scan(self, projected: Tensor, before: tuple[Tensor, ...], starts: Tensor | None) -> tuple[Tensor, ...]:
        bias = projected.new_zeros(self.d_hidden) if self.recurrent_bias is None else self.recurrent_bias
        weight, bias = self.matrix(projected.dtype), bias.to(projected.dtype)
        return (gru_scan(projected, weight, bias, before[0], starts),)
