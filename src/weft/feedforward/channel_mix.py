"""RWKV's channel mixing: a feed-forward with a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.declarations import Declared
from weft.core.layer import Layer, LayerState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Memory, Output, Span
from weft.core.state import tensor_field
from weft.feedforward.base import FeedForwardConfig
from weft.linear.linear import Linear
from weft.ops.token_shift import last_token, previous_token


@dataclass(frozen=True)
class ChannelMixState(LayerState):
    """The input at the last token, zero before the first."""

    last: Float[Tensor, "B D"] = tensor_field()


class ChannelMix(Layer):
    """RWKV's channel mixing (Peng et al. 2023, section 3.1): each token is mixed with the one before it.

        k_t = W_k (mu_k x_t + (1 - mu_k) x_{t-1})           r_t = W_r (mu_r x_t + (1 - mu_r) x_{t-1})
        y_t = sigmoid(r_t) * W_v max(k_t, 0)^2

    x, y [B,T,D]; ``key.weight`` [F,D], ``value.weight`` [D,F], ``receptance.weight`` [D,D], no biases; ``mix_key`` and
    ``mix_receptance`` are the mu [D]. x_{t-1} is zero at a document's first token. State: x at the last token, [B,D].

    That of RWKV-5 and 6 is the same, the latter's code with 1 - mu for mu. RWKV-7's has no receptance, y_t = W_v
    max(k_t, 0)^2 (Peng et al. 2025, section 4). The initial mu are those of the released training code: for feature i
    (i / D)^(1 - layer / n_layers), and without receptance the fourth power of that exponent.
    """

    state_type: type[LayerState] = ChannelMixState

    def __init__(self, d_model: int, d_ff: int, *, depth: float = 0.0, receptance: bool = True) -> None:
        super().__init__()
        self.d_model = d_model
        ramp = (torch.arange(d_model) / d_model) ** ((1.0 - depth) ** (1 if receptance else 4))
        self.mix_key = nn.Parameter(ramp.clone())
        self.mix_receptance = nn.Parameter(ramp.clone()) if receptance else None
        self.key = Linear(d_model, d_ff, bias=False)
        self.value = Linear(d_ff, d_model, bias=False)
        self.receptance = Linear(d_model, d_model, bias=False) if receptance else None

    def declares(self) -> Declared:
        return Declared(joins_pieces=True)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype,
              memory: Memory | None) -> ChannelMixState:
        last = torch.zeros(clock.batch(), self.d_model, dtype=dtype, device=clock.seen.device)
        return ChannelMixState(clock, last)

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        last = state.last if isinstance(state, ChannelMixState) else None
        previous = previous_token(x, last, span)
        k = self.key(torch.lerp(previous, x, self.mix_key))
        y: Tensor = self.value(torch.relu(k).square())
        if self.receptance is not None and self.mix_receptance is not None:
            y = torch.sigmoid(self.receptance(torch.lerp(previous, x, self.mix_receptance))) * y
        if last is None or span.after is None:
            return Output(y, None)
        return Output(y, ChannelMixState(span.after, last_token(x, last, span)))


@register
class ChannelMixConfig(FeedForwardConfig):
    """RWKV's channel mixing. ``d_ff``: hidden width, 4 d_model when it is left out. ``receptance``: whether a gate
    multiplies the result, as in RWKV-4, 5 and 6 and not in RWKV-7.

    Attributes:
        d_ff: hidden width F, in features; None: 4 d_model.
        receptance: whether a gate multiplies the result (RWKV-4, 5 and 6).
    """

    kind: ClassVar[str] = "channel_mix"
    about = About(
        source=("Peng et al. 2023 (arXiv:2305.13048), section 3.1; Peng et al. 2025 (arXiv:2503.14456; without "
                "receptance)"),
        equation=(r"k_t = W_k\left(\mu_k x_t + (1 - \mu_k) x_{t-1}\right), \quad r_t = W_r\left(\mu_r x_t + (1 - "
                  r"\mu_r) x_{t-1}\right), \quad y_t = \sigma(r_t) \odot W_v \max(k_t, 0)^2"),
        differs=(("mlp", "reads the token before as well, so it has a state, and squares the rectified units."),
                 ("glu", "its gate multiplies the output in place of the hidden units.")),
        state_size="d_model numbers")

    d_ff: int | None = Field(default=None, gt=0)
    receptance: bool = True

    def build(self, dims: Dims) -> ChannelMix:
        width = 4 * dims.d_model if self.d_ff is None else self.d_ff
        return ChannelMix(dims.d_model, width, depth=dims.layer / dims.n_layers, receptance=self.receptance)

    @classmethod
    def examples(cls) -> list[ChannelMixConfig]:
        return [cls(), cls(d_ff=7, receptance=False)]
