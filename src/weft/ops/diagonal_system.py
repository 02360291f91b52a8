"""The discrete system of a diagonal state-space layer, and its convolution kernel: two operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops import native_diagonal_system as in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.native.library import why_not
from weft.ops.s4d import Discretisation, Modes, blocks_kernel, discretise, multiply, read

Discrete = tuple[Tensor, Tensor, Tensor]
"""log |A| [H,M], arg A [H,M] and B [H,M,2]."""


class DiscretisationCall(NamedTuple):
    """One call.

    Attributes:
        log_decay: logarithms of the rates at which modes decay, -Re a.
        frequency: Im a, radians for each unit of time.
        b: of the system in continuous time.
        method: zero-order hold or bilinear.
    """

    log_dt: Float[Tensor, " H"]
    log_decay: Float[Tensor, "H M"]
    frequency: Float[Tensor, "H M"]
    b: Float[Tensor, "H M 2"]
    method: Discretisation


class ModesKernelCall(NamedTuple):
    """A discrete system, by the fields of `Modes`, and the lags of its kernel."""

    log_radius: Float[Tensor, "H M"]
    angle: Float[Tensor, "H M"]
    b: Float[Tensor, "H M 2"]
    c: Float[Tensor, "H M 2"]
    length: int


def discrete(given: DiscretisationCall, c: Float[Tensor, "H M 2"]) -> Modes:
    """The discrete system, with what is read from its state."""
    return Modes(*S4D_DISCRETISATION(given), c)


def kernel(modes: Modes, length: int) -> Float[Tensor, "H T"]:
    """K_l = 2 Re(sum over modes of C A^l B); Gu et al. 2022b, eq. 6."""
    return S4D_KERNEL(ModesKernelCall(modes.log_radius, modes.angle, modes.b, modes.c, length))


def _written_out(call: DiscretisationCall) -> Discrete:
    a = torch.stack([-call.log_decay.exp(), call.frequency], dim=-1)
    modes = discretise(a, call.b, call.b, call.log_dt.exp(), call.method)
    return modes.log_radius, modes.angle, modes.b


def _held(call: DiscretisationCall) -> Discrete:
    return in_c.held(*call[:4])


def _one_dtype(*tensors: Tensor) -> str | None:
    if not tensors[0].numel():
        return "there are no channels"
    return why_not() if len({x.dtype for x in tensors}) == 1 else "its tensors have several dtypes"


def _hold_in_c(call: DiscretisationCall) -> str | None:
    return _one_dtype(*call[:4]) if call.method == "zoh" else "only a zero-order hold is in C"


def _lag_by_lag(call: ModesKernelCall) -> Tensor:
    modes = Modes(*call[:4])
    powers = modes.power(torch.arange(call.length, device=call.b.device))  # [T,H,M,2]
    return read(multiply(modes.c, modes.b), powers).t()


def _blocks(call: ModesKernelCall) -> Tensor:
    return blocks_kernel(Modes(*call[:4]), call.length)


def _native(call: ModesKernelCall) -> Tensor:
    return in_c.kernel(Modes(*call[:4]), call.length)


def _kernel_in_c(call: ModesKernelCall) -> str | None:
    return _one_dtype(*call[:4]) if call.length else "there are no lags"


def _systems(make: Make) -> Iterator[DiscretisationCall]:
    for modes in (1, 8, 19):
        for method in ("zoh", "bilinear"):
            yield DiscretisationCall(make(3), make(3, modes), make(3, modes), make(3, modes, 2), method)


def _kernels(make: Make) -> Iterator[ModesKernelCall]:
    for modes, length in ((1, 1), (2, 16), (5, 37), (3, 1300)):
        # Modes that decay slowly, so that gradients by the angle, which grow with the lag, are not all of a kernel.
        yield ModesKernelCall(-make(3, modes).square() / 8 - 0.02, make(3, modes), make(3, modes, 2),
                              make(3, modes, 2), length)


S4D_DISCRETISATION = OPERATIONS.add(Operation(
    "s4d_discretisation", "the discrete system of a diagonal state-space model",
    Form(REFERENCE, _written_out, "as it is written"),
    Form("native", _held, "zero-order hold in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
         transformed=False, serves=_hold_in_c, flops=in_c.HOLD_FLOPS, known_as=("c",)),
    subject="log_decay", examples=_systems, known_as=("zero_order_hold", "bilinear")))

S4D_KERNEL = OPERATIONS.add(Operation(
    "s4d_kernel", "the convolution kernel of a diagonal state-space model",
    Form(REFERENCE, _lag_by_lag, "every power by itself"),
    Form("native", _native, "powers in registers, in C", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32}), transformed=False, serves=_kernel_in_c,
         flops=in_c.KERNEL_FLOPS, known_as=("c",)),
    Form("blocks", _blocks, "products of sqrt(T) powers each"),
    subject="log_radius", examples=_kernels, known_as=("vandermonde",)))
