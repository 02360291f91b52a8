"""A linear state-space model with dense matrices for every channel: the plain form from which S4 departs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.declarations import Declared
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.mixers.state_space import StateSpace, SystemConfig
from weft.ops.dense_ssm import DenseSystem, Method, discretise_dense
from weft.ops.forms import REFERENCE
from weft.ops.hippo import hippo_legs
from weft.ops.linear_ssm import linear_ssm
from weft.ops.ssm_chunk import Chunk, Inputs

COMPUTED = {"auto": None, "recurrence": REFERENCE, "convolution": "convolution", "fft": "fft"}


@register
class LinearSSMConfig(SystemConfig):
    """A linear state-space model with unstructured matrices for every channel, an activation, and a linear map that
    mixes channels.

    Attributes:
        d_state: units N of each channel's system; its matrix is learned as N^2 numbers.
        init: "legs", HiPPO-LegS; "random", normal numbers with deviation 1/sqrt(N), shifted so that the slowest mode
            decays like exp(-t/2).
        discretisation: bilinear, or "zoh", zero-order hold.
        backend: "recurrence", "convolution" (term by term, in O(T^2)), "fft", or "auto", which takes the Fourier
            transform for chunks and the recurrence for single tokens. All agree.
    """

    kind: ClassVar[str] = "linear_ssm"
    about = replace(SystemConfig.about,
        title="linear SSM", also_called=("ssm", "lssl"),
        source="Gu et al. 2021 (LSSL), sections 2 and 3; Gu et al. 2022 (S4), section 2",
        equation=r"x' = A x + B u, \qquad y = C x + D u, \qquad A \in \mathbb{R}^{N \times N}",
        differs=(("s4", "A has no structure, so that its kernel costs N^3 operations."), ("s4d", "A is not diagonal.")))

    d_state: int = Field(default=16, gt=0)
    init: Literal["legs", "random"] = "legs"
    discretisation: Method = "bilinear"
    backend: Literal["auto", "recurrence", "convolution", "fft"] = "auto"

    def build(self, dims: Dims) -> LinearSSM:
        return LinearSSM(dims.d_model, self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_state=4), cls(d_state=3, init="random", discretisation="zoh", backend="convolution"),
                cls(d_state=2, backend="recurrence", mixing="linear", activation="identity"),
                cls(d_state=3, discretisation="zoh", backend="fft", dt_min=0.1, dt_max=0.5)]


class LinearSSM(StateSpace):
    """H = d_model independent systems x' = A x + B u, y = C x + D u, then an activation and a mixing linear map.

    A [N,N], B, C, D and log dt of every channel are learned, and nothing keeps A stable while it is trained: an
    eigenvalue with a positive real part makes the state grow without bound. The kernel and a chunk from a state take
    O(N^3 log T) operations besides those of the convolution, one step O(N^2); S4's structure makes them O(N). The
    system is computed in float32 or better. State: N numbers a channel.
    """

    def __init__(self, d_model: int, config: LinearSSMConfig) -> None:
        super().__init__(d_model, config)
        self.add_maps()
        self.config = config
        size, like = config.d_state, torch.empty(0)
        a, b, _ = hippo_legs(size)
        if config.init == "legs":
            self.a = nn.Parameter(a.to(like).repeat(d_model, 1, 1))
            self.b = nn.Parameter(b.to(like).repeat(d_model, 1))
        else:
            self.a = nn.Parameter(random_matrices(d_model, size).to(like))
            self.b = nn.Parameter(torch.randn(d_model, size))
        self.c = nn.Parameter(torch.randn(d_model, size) / math.sqrt(size))

    def declares(self) -> Declared:
        return Declared(dynamics=(self.log_dt, self.a, self.b))

    def discrete(self) -> DenseSystem:
        """The learned system in steps of the learned length, in float32 or better."""
        a, b, c, steps = (each.to(self.exact_dtype()) for each in (self.a, self.b, self.c, self.log_dt))
        return discretise_dense(a, b, c, steps.exp(), self.config.discretisation)

    def system(self, given: Inputs) -> Chunk:
        return linear_ssm(given, self.discrete(), COMPUTED[self.config.backend])


def random_matrices(count: int, size: int) -> Float[Tensor, "H N N"]:
    """Normal numbers with deviation 1/sqrt(N), less a multiple of the identity, so that the largest real part of an
    eigenvalue is -1/2."""
    drawn = torch.randn(count, size, size, dtype=torch.float64) / math.sqrt(size)
    largest: Tensor = torch.linalg.eigvals(drawn).real.amax(-1)
    return drawn - (largest + 0.5)[:, None, None] * torch.eye(size, dtype=torch.float64)
