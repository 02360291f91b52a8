"""S4: a state-space model for every channel, initialised to remember its input, whose matrix is diagonal plus rank one;
trained as a convolution and decoded as a recurrence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import nn

from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.mixers.state_space import StateSpace, SystemConfig
from weft.ops.hippo import diagonal_modes
from weft.ops.s4 import S4_CHUNK, Dplr, S4Call
from weft.ops.ssm_chunk import Chunk, Inputs


@register
class S4Config(SystemConfig):
    """A state-space model with a diagonal plus rank-one matrix for every channel, an activation, and a linear map that
    mixes channels."""

    kind: ClassVar[str] = "s4"
    about = replace(SystemConfig.about,
        title="S4", also_called=("dplr", "nplr"), source="Gu et al. 2022 (S4), sections 3.2 to 3.4 and appendix C",
        equation=r"x' = A x + B u, \quad y = C x + D u, \qquad A = \Lambda - P P^{*}",
        differs=(("s4d", "A has a rank-one term beside its diagonal, and starts as HiPPO-LegS itself."),
                 ("linear_ssm", "A is stable, and structured so that kernels are cheap.")))

    @model_validator(mode="after")
    def _require_pairs(self) -> Self:
        if self.d_state % 2:
            raise rule("d_state", f"{self.d_state} is odd, and modes come in conjugate pairs.", "Give an even number.")
        return self

    def build(self, dims: Dims) -> S4:
        return S4(dims.d_model, self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_state=8), cls(d_state=4, mixing="linear", activation="relu", dt_min=0.1, dt_max=0.5)]


class S4(StateSpace):
    """H = d_model independent systems x' = A x + B u, y = C x + D u with A = Lambda - P P*, then an activation and a
    mixing linear map.

    At first A is the matrix of HiPPO-LegS, written in the basis in which its normal part is diagonal: Lambda with real
    parts -1/2, P = B / sqrt 2, and B of that basis, whose phases are chosen so that it is real and positive. C and D
    are drawn from normal distributions, dt log-uniformly. All are learned; one mode of each conjugate pair is stored,
    with -exp(log_decay) as its real part, so that A stays stable: x* A x has a negative real part for any P. The
    discretisation is bilinear. Parameters are real tensors, complex numbers as pairs in the last dimension.

    Chunks are convolved by Fourier transforms in O(T log T), in float32 or better, with the kernel by one of the forms
    of the operation ``s4``: Cauchy products at the roots of unity as in the paper, or products of dense powers, which
    are faster on processors. Single tokens take a step of O(N) operations a channel. The parameter is C itself, where
    released code stores C (I - A^L) for one length L; so the length of the kernel is that of each chunk. State: N/2
    complex numbers a channel, in the basis above.
    """

    def __init__(self, d_model: int, config: S4Config) -> None:
        super().__init__(d_model, config)
        self.add_maps()
        self.config = config
        modes, b = diagonal_modes("legs", config.d_state)
        like = torch.empty(0)
        self.log_decay = nn.Parameter((-modes[:, 0]).log().to(like).repeat(d_model, 1))
        self.frequency = nn.Parameter(modes[:, 1].to(like).repeat(d_model, 1))
        self.p = nn.Parameter((b / math.sqrt(2)).to(like).repeat(d_model, 1, 1))
        self.b = nn.Parameter(b.to(like).repeat(d_model, 1, 1))
        self.c = nn.Parameter(torch.randn(d_model, config.d_state // 2, 2) / math.sqrt(2))

    def declares(self) -> Declared:
        return Declared(dynamics=(self.log_dt, self.log_decay, self.frequency, self.p, self.b))

    def continuous(self) -> Dplr:
        """The learned system, in float32 or better."""
        exact = self.exact_dtype()
        modes = torch.stack([-self.log_decay.to(exact).exp(), self.frequency.to(exact)], dim=-1)
        return Dplr(modes, self.p.to(exact), self.b.to(exact), self.c.to(exact), self.log_dt.to(exact).exp())

    def system(self, given: Inputs) -> Chunk:
        return S4_CHUNK(S4Call(given, self.continuous()))
