"""The long short-term memory network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from weft.core.config import rule
from weft.core.declarations import HasInferenceForm
from weft.core.part_config import Dims
from weft.core.recurrent_layer import HiddenState
from weft.core.registry import register
from weft.core.state import tensor_field
from weft.mixers.recurrent import Recurrent, RecurrentConfig
from weft.ops.lstm_scan import lstm_scan


@register
class LSTMConfig(RecurrentConfig):
    """A long short-term memory network with a forget gate and no peepholes.

    Attributes:
        forget_bias: added to the initial bias of the forget gate; 1 keeps the gate open at first (Jozefowicz et al.
            2015).
    """

    kind: ClassVar[str] = "lstm"
    about = replace(RecurrentConfig.about,
        title="LSTM", source="Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate); Zaremba et al. 2014",
        equation=(r"i, f, o = \sigma(W x_t + U h_{t-1} + b), \quad g = \tanh(W_g x_t + U_g h_{t-1} + b_g), \quad c_t "
                  r"= f \odot c_{t-1} + i \odot g, \quad h_t = o \odot \tanh(c_t)"),
        differs=(("gru", "keeps a cell beside what it returns, and has three gates in place of two."),
                 ("elman", "gates decide what is written, kept and read.")),
        state_size="2 d_hidden float32 numbers")

    forget_bias: float = 0.0

    @model_validator(mode="after")
    def _require_bias(self) -> Self:
        if self.forget_bias != 0 and not self.bias:
            raise rule("forget_bias", f"{self.forget_bias:g} in a network without bias.",
                       "Leave it out, or set bias to true.")
        return self

    def build(self, dims: Dims) -> LSTM:
        return LSTM(dims.d_model, self.d_hidden, self.bias, self.forget_bias)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(d_hidden=5, bias=False), cls(forget_bias=1.0)]


@dataclass(frozen=True)
class LSTMState(HiddenState):
    """The output of the last token and its cell, zero before the first."""

    c: Float[Tensor, "B H"] = tensor_field(keeps_dtype=True)


class LSTM(Recurrent, HasInferenceForm):
    """The LSTM, h_0 = c_0 = 0, s the sigmoid:

        i = s(W_i x_t + U_i h_{t-1} + b_i)      f = s(W_f x_t + U_f h_{t-1} + b_f)
        g = tanh(W_g x_t + U_g h_{t-1} + b_g)   o = s(W_o x_t + U_o h_{t-1} + b_o)
        c_t = f c_{t-1} + i g                   h_t = o tanh(c_t)

    Gates are stacked in the order i, f, g, o (PyTorch's). State: h and c, 2 d_hidden numbers a row. One bias, where
    PyTorch's nn.LSTM adds two.
    """

    gates = 4
    carries = 2
    state_type = LSTMState

    def __init__(self, d_model: int, d_hidden: int | None = None, bias: bool = True, forget_bias: float = 0.0) -> None:
        super().__init__(d_model, d_hidden, bias)
        if bias:
            with torch.no_grad():
                self.input.bias.chunk(4)[1].add_(forget_bias)

    def opened(self) -> LSTM:
        return self.with_map()

    def inference(self) -> nn.Module:
        return self.with_matrix()

    def scan(self, projected: Tensor, before: tuple[Tensor, ...], starts: Tensor | None) -> tuple[Tensor, ...]:
        return lstm_scan(projected, self.matrix(projected.dtype), before[0], before[1], starts)
