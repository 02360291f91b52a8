"""A chunk of tokens through S4, from a state and across documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.dense_ssm import Powers
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.s4 import Dplr, advance, dense, discretised, reading, resolvent
from weft.ops.s4_kernel import cauchy_kernel
from weft.ops.ssm_chunk import BY_FFT, Chunk, Inputs, convolved, inputs_for_forms, stepped


class S4Call(NamedTuple):
    """One call of at least one token.

    Attributes:
        given: what enters; the state is that of N/2 modes, as pairs in a row.
        system: continuous.
    """

    given: Inputs
    system: Dplr

    @property
    def x(self) -> Float[Tensor, "B T H"]:
        """The inputs."""
        return self.given.x


def _recurrence(call: S4Call) -> Chunk:
    a, b, c = discretised(call.system)

    def step(state: Tensor, now: Tensor) -> Tensor:
        return torch.einsum("hij,bhj->bhi", a, state) + b * now[..., None]

    return stepped(call.given, step, lambda state: (c * state).sum(-1), b.shape[1])


def _steps(call: S4Call) -> Chunk:
    solve, c = resolvent(call.system), reading(call.system.c)
    return stepped(call.given, lambda state, now: advance(call.system, solve, state, now),
                   lambda state: (c * state).sum(-1), c.shape[1])


def _powers(call: S4Call) -> Chunk:
    powers = Powers(dense(call.system))
    return convolved(call.given, powers.kernel(call.x.shape[1]), lambda: powers, BY_FFT)


def _cauchy(call: S4Call) -> Chunk:
    kernel = cauchy_kernel(call.system, call.x.shape[1])
    return convolved(call.given, kernel, lambda: Powers(dense(call.system)), BY_FFT)


def _one(call: S4Call) -> str | None:
    return None if call.x.shape[1] == 1 else "several tokens"


def _several(call: S4Call) -> str | None:
    return "a single token" if call.x.shape[1] == 1 else None


def _examples(make: Make) -> Iterator[S4Call]:
    modes = torch.stack([-make(3, 2).square() - 0.1, make(3, 2)], -1)
    system = Dplr(modes, make(3, 2, 2), make(3, 2, 2), make(3, 2, 2), make(3).square() + 0.1)
    for given in inputs_for_forms(make, 3, 4):
        yield S4Call(given, system)


S4_CHUNK = OPERATIONS.add(Operation(
    "s4", "a diagonal plus rank-one state-space model over a chunk",
    Form(REFERENCE, _recurrence, "dense matrices, step by step", known_as=("recurrence", "naive")),
    Form("steps", _steps, "diagonal plus rank one, step by step", worth=_one, known_as=("step",)),
    Form("powers", _powers, "FFT, the kernel from dense powers", worth=_several),
    Form("cauchy", _cauchy, "FFT, the kernel from Cauchy products", worth=_several, known_as=("cauchy_at_once",)),
    subject="x", examples=_examples, known_as=("dplr",)))
