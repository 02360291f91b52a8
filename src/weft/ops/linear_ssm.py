"""A chunk of tokens through linear state-space models with dense matrices, as a recurrence and as convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.dense_ssm import DenseSystem, Powers
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.ssm_chunk import BY_FFT, BY_TERMS, Chunk, Convolutions, Inputs, convolved, inputs_for_forms, stepped


class LinearSSMCall(NamedTuple):
    """One call of at least one token.

    Attributes:
        system: discrete, one for each channel.
    """

    given: Inputs
    system: DenseSystem

    @property
    def x(self) -> Float[Tensor, "B T H"]:
        """The inputs."""
        return self.given.x


def linear_ssm(given: Inputs, system: DenseSystem, form: str | None = None) -> Chunk:
    """x_t = A x_{t-1} + B u_t, y_t = C x_t for each channel: the outputs [B,T,H] and the state after the chunk.

    Args:
        form: the form of the operation to take; None: the one that is chosen.
    """
    return LINEAR_SSM(LinearSSMCall(given, system), form)


def _recurrence(call: LinearSSMCall) -> Chunk:
    a, b, c = call.system

    def step(state: Tensor, now: Tensor) -> Tensor:
        return torch.einsum("hij,bhj->bhi", a, state) + b * now[..., None]

    return stepped(call.given, step, lambda state: (c * state).sum(-1), b.shape[1])


def _convolution(call: LinearSSMCall) -> Chunk:
    return _by_kernel(call, BY_TERMS)


def _fft(call: LinearSSMCall) -> Chunk:
    return _by_kernel(call, BY_FFT)


def _by_kernel(call: LinearSSMCall, how: Convolutions) -> Chunk:
    powers = Powers(call.system)
    return convolved(call.given, powers.kernel(call.x.shape[1]), lambda: powers, how)


def _quadratic(call: LinearSSMCall) -> str | None:
    return "its time grows with the square of the chunk"


def _several(call: LinearSSMCall) -> str | None:
    return "a single token" if call.x.shape[1] == 1 else None


def _examples(make: Make) -> Iterator[LinearSSMCall]:
    system = DenseSystem(make(3, 4, 4) * 0.3, make(3, 4), make(3, 4))
    for given in inputs_for_forms(make, 3, 4):
        yield LinearSSMCall(given, system)


LINEAR_SSM = OPERATIONS.add(Operation(
    "linear_ssm", "a state-space model with dense matrices over a chunk",
    Form(REFERENCE, _recurrence, "step by step", known_as=("recurrence", "steps")),
    Form("fft", _fft, "a convolution by FFT", worth=_several),
    Form("convolution", _convolution, "a convolution term by term, in O(T^2)", worth=_quadratic, known_as=("direct",)),
    subject="x", examples=_examples, known_as=("lssl",)))
