"""The two-layer perceptron."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.declarations import Declared, WidthRoles
from weft.core.layer import Pointwise
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.feedforward.base import FeedForwardConfig
from weft.linear.linear import Divisible, Division, Linear
from weft.ops.activations import ACTIVATIONS, KEEP_THEIR_INPUT, Activation, ActivationName
from weft.ops.operator import cheap


class MLP(Pointwise, Divisible):
    """Two linear maps with a non-linearity between (Vaswani et al. 2017, equation 2), for each token by itself.

        y = W_down f(W_up x + b_up) + b_down

    x, y [B,T,D]; ``up.weight`` [F,D], ``down.weight`` [D,F]; the biases are optional. Its state is the clock alone.
    """

    def __init__(self, d_model: int, d_ff: int, activation: ActivationName = "gelu", *, bias: bool = True) -> None:
        super().__init__()
        self.activation, self.keeps_input = ACTIVATIONS[activation], activation in KEEP_THEIR_INPUT
        self.up, self.down = Linear(d_model, d_ff, bias), Linear(d_ff, d_model, bias)

    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        children: Any = self._modules  # by name torch looks a child up in a function of Python's
        hidden = children["up"](x)
        active = self.activation(hidden)
        if self.keeps_input and torch.is_grad_enabled():
            active = cheap(active, lambda: self.activation(hidden))
        y: Tensor = children["down"](active)
        return y

    def declares(self) -> Declared:
        return Declared(width_roles=WidthRoles(MLP))

    def division(self) -> Division:
        width = self.up.out_features
        return Division({"d_ff": width}, into={"up": (width,)}, out_of={"down": (width,)})

    def divide(self, parts: int, place: int) -> None:
        """It has no numbers of its own: the widths are those of its maps."""


@register
class MLPConfig(FeedForwardConfig):
    """Two-layer perceptron. ``d_ff``: hidden width, 4 d_model when it is left out.

    Attributes:
        d_ff: hidden width F, in features; None: 4 d_model.
        activation: f.
        bias: whether both maps have a bias.
    """

    kind: ClassVar[str] = "mlp"
    about = About(
        title="MLP", source="Vaswani et al. 2017 (arXiv:1706.03762), equation 2",
        equation=r"y = W_{\text{down}}\, f(W_{\text{up}} x + b_{\text{up}}) + b_{\text{down}}",
        differs=(("glu", "has no gate: two matrices in place of three."),
                 ("moe", "every token uses all of its weights.")))

    d_ff: int | None = Field(default=None, gt=0)
    activation: Activation = "gelu"
    bias: bool = True

    def width(self, d_model: int) -> int:
        """The width of the hidden layer."""
        return 4 * d_model if self.d_ff is None else self.d_ff

    def width_fields(self) -> tuple[str, ...]:
        return ("d_ff",)

    def in_words(self, d_model: int = 0) -> str:
        return f"{self.about.title} {self.width(d_model):,}"

    def build(self, dims: Dims) -> MLP:
        return MLP(dims.d_model, self.width(dims.d_model), self.activation, bias=self.bias)

    @classmethod
    def examples(cls) -> list[MLPConfig]:
        return [cls(), cls(d_ff=7, activation="relu", bias=False), cls(d_ff=5, activation="squared_relu")]
