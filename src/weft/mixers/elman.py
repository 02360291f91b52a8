"""The Elman network, the simple recurrent network."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal, Self

from torch import Tensor, nn

from weft.core.declarations import HasInferenceForm
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.mixers.recurrent import Recurrent, RecurrentConfig
from weft.ops.elman_scan import Activation, elman_scan


@register
class ElmanConfig(RecurrentConfig):
    """A simple recurrent network.

    Attributes:
        activation: f.
    """

    kind: ClassVar[str] = "elman"
    about = replace(RecurrentConfig.about,
        title="Elman network", source="Elman 1990; Mikolov et al. 2010", equation="h_t = f(W_x x_t + W_h h_{t-1} + b)",
        differs=(("gru", "has no gates, so that gradients over many tokens vanish sooner."),
                 ("lstm", "has neither gates nor a cell.")))

    activation: Literal["tanh", "sigmoid", "relu"] = "tanh"

    def build(self, dims: Dims) -> Elman:
        return Elman(dims.d_model, self.d_hidden, self.bias, self.activation)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(activation="sigmoid", d_hidden=5), cls(activation="relu", bias=False)]


class Elman(Recurrent, HasInferenceForm):
    """The Elman network: h_t = f(W_x x_t + W_h h_{t-1} + b), h_0 = 0, f tanh, sigmoid or relu.

    State: h, d_hidden numbers a row. One bias, where PyTorch's nn.RNN adds two.

    With a sigmoid, whose slope is at most 1/4, weights are drawn uniformly between -b and b, b = 4 sqrt(6 / (inputs +
    outputs)) (Glorot and Bengio 2010, equation 16, with the factor 4 for the sigmoid of their later code), and biases
    are 0: with the initialisation of the others, the input hardly changes the output of two stacked layers, which then
    learn only the frequencies of tokens.
    """

    gates = 1

    def __init__(self, d_model: int, d_hidden: int | None = None, bias: bool = True,
                 activation: Activation = "tanh") -> None:
        super().__init__(d_model, d_hidden, bias)
        self.activation = activation
        if activation == "sigmoid":
            self._initialise_for_sigmoid()

    def _initialise_for_sigmoid(self) -> None:
        for weight in (self.input.weight, self.recurrent_weight):
            bound = 4 * math.sqrt(6 / sum(weight.shape))
            nn.init.uniform_(weight, -bound, bound)
        if self.input.bias is not None:
            nn.init.zeros_(self.input.bias)

    def opened(self) -> Elman:
        return self.with_map()

    def inference(self) -> nn.Module:
        return self.with_matrix()

    def scan(self, projected: Tensor, before: tuple[Tensor, ...], starts: Tensor | None) -> tuple[Tensor, ...]:
        weight = self.matrix(projected.dtype)
        return (elman_scan(projected, weight, before[0], self.activation, starts),)
