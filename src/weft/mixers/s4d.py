"""S4D: a diagonal state-space model for every channel, trained as a convolution and decoded as a recurrence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.state import tensor_field
from weft.mixers.state_space import StateSpace, SystemConfig
from weft.ops.diagonal_system import DiscretisationCall, discrete
from weft.ops.hippo import Initialisation, diagonal_modes
from weft.ops.s4d import Discretisation, Modes
from weft.ops.s4d_chunk import S4D_CHUNK, S4DCall
from weft.ops.ssm_chunk import Chunk, Inputs


@register
class S4DConfig(SystemConfig):
    """A diagonal state-space model for every channel, an activation, and a linear map that mixes channels.

    Attributes:
        d_state: units N of each channel's real system, N/2 complex modes.
        init: initialisation of the modes.
        discretisation: zero-order hold or bilinear.
    """

    kind: ClassVar[str] = "s4d"
    about = replace(SystemConfig.about,
        title="S4D", source="Gu et al. 2022b (S4D), section 3; Gu et al. 2022 (S4), section 3.4 (the layer)",
        equation=(r"x' = A x + B u, \quad y = 2 \operatorname{Re}(C x) + D u, \qquad A = \operatorname{diag}(-e^{a} + "
                  r"i \omega)"),
        differs=(("s4", "A is diagonal, without the rank-one term."),
                 ("mamba", "no token changes the dynamics, so that a row is one convolution.")))

    init: Initialisation = "lin"
    discretisation: Discretisation = "zoh"

    @model_validator(mode="after")
    def _require_pairs(self) -> Self:
        if self.d_state % 2:
            raise rule("d_state", f"{self.d_state} is odd, and modes come in conjugate pairs.", "Give an even number.")
        return self

    def build(self, dims: Dims) -> S4D:
        return S4D(dims.d_model, self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_state=8), cls(d_state=4, init="inv", discretisation="bilinear", activation="silu"),
                cls(d_state=6, init="legs", mixing="linear", activation="relu"),
                cls(d_state=2, dt_min=0.1, dt_max=0.5, activation="identity")]


@dataclass(frozen=True)
class S4DState(LayerState):
    """The complex state of every mode, as pairs, in float32 or better for any dtype of the model."""

    modes: Float[Tensor, "B H M 2"] = tensor_field(keeps_dtype=True)


class S4D(StateSpace):
    """H = d_model independent systems x' = A x + B u, y = 2 Re(C x) + D u, then an activation and a mixing linear map.

    A is diagonal and complex, A = -exp(log_decay) + i frequency; A, B, C, D and log dt are learned. Parameters are
    real tensors (complex numbers as pairs in the last dimension), which checkpoints, optimisers and sharding all
    support. Chunks are convolved, long ones by FFT in O(T log T), in float32 or better; single tokens are steps of the
    recurrence. State: N/2 complex numbers a channel, d_model d_state real ones a row. Common implementations fix B = 1;
    here that is the initial value (except for "legs"), and B is learned. The kernel is twice the real part, as one mode
    of each conjugate pair is stored.
    """

    state_type = S4DState

    def __init__(self, d_model: int, config: S4DConfig) -> None:
        super().__init__(d_model, config)
        self.config = config
        a, b = diagonal_modes(config.init, config.d_state)
        like = torch.empty(0)
        self.log_decay = nn.Parameter((-a[:, 0]).log().to(like).repeat(d_model, 1))
        self.frequency = nn.Parameter(a[:, 1].to(like).repeat(d_model, 1))
        self.b = nn.Parameter(b.to(like).repeat(d_model, 1, 1))
        self.c = nn.Parameter(torch.randn(d_model, config.d_state // 2, 2) / math.sqrt(2))
        self.add_maps()

    def declares(self) -> Declared:
        return Declared(dynamics=(self.log_dt, self.log_decay, self.frequency, self.b))

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (tuple(self.c.shape),)

    def discrete(self) -> Modes:
        """The system for the learned steps, in float32 or better."""
        exact = self.exact_dtype()
        given = DiscretisationCall(self.log_dt.to(exact), self.log_decay.to(exact), self.frequency.to(exact),
                                   self.b.to(exact), self.config.discretisation)
        return discrete(given, self.c.to(exact))

    def system(self, given: Inputs) -> Chunk:
        x, before, fresh, starts, counts = given
        return S4D_CHUNK(S4DCall(x, self.discrete(), before, fresh, starts, counts))
