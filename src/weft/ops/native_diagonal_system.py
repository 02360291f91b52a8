"""A diagonal state-space model's discretisation by a zero-order hold, and its convolution kernel, in C, forward and
backward, in float32 on a processor: one call each, where PyTorch starts some forty operators, and a hundred for the
gradients. The sources are `weft/ops/native/diagonal_system.c` and what it includes. """

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.native.library import ADDRESS, COUNT, run, structure
from weft.ops.operator import differentiable
from weft.ops.s4d import Modes, blocks_kernel, discretise

_Hold = structure(
    (ADDRESS, "log_dt log_decay frequency b log_radius angle held dlog_radius dangle dheld"),
    (ADDRESS, "dlog_dt dlog_decay dfrequency db"), (COUNT, "channels modes next"))
"""`Hold` of native/diagonal_system.h."""
_ModesKernel = structure(
    (ADDRESS, "log_radius angle b c kernel dkernel dlog_radius dangle db dc"), (COUNT, "channels modes steps next"))
"""`ModesKernel` of native/diagonal_system.h."""


def held(log_dt: Float[Tensor, " H"], log_decay: Float[Tensor, "H M"], frequency: Float[Tensor, "H M"],
         b: Float[Tensor, "H M 2"]) -> tuple[Float[Tensor, "H M"], Float[Tensor, "H M"], Float[Tensor, "H M 2"]]:
    """log |A|, arg A and B of the discrete system, for a = -exp(log_decay) + i frequency and steps exp(log_dt)."""
    log_radius, angle, b = _HOLD(log_dt, log_decay, frequency, b)
    return log_radius, angle, b


def kernel(modes: Modes, length: int) -> Float[Tensor, "H T"]:
    """The kernel of a discrete system."""
    found: Tensor = _KERNEL(modes.log_radius, modes.angle, modes.b, modes.c, length)
    return found


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors)


def _hold(log_dt: Tensor, log_decay: Tensor, frequency: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_radius, angle, found = _like(log_decay, frequency, b)
    run("weft_hold_forward", _Hold(channels=b.shape[0], modes=b.shape[1]), log_dt=log_dt, log_decay=log_decay,
        frequency=frequency, b=b, log_radius=log_radius, angle=angle, held=found)
    return log_radius, angle, found


def _hold_shapes(log_dt: Tensor, log_decay: Tensor, frequency: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return _like(log_decay, frequency, b)


def _hold_backward(dlog_radius: Tensor, dangle: Tensor, dheld: Tensor, log_dt: Tensor, log_decay: Tensor,
                   frequency: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the arguments of `_hold`."""
    dlog_dt, dlog_decay, dfrequency, db = _like(log_dt, log_decay, frequency, b)
    run("weft_hold_backward", _Hold(channels=b.shape[0], modes=b.shape[1]), log_dt=log_dt, log_decay=log_decay,
        frequency=frequency, b=b, dlog_radius=dlog_radius, dangle=dangle, dheld=dheld, dlog_dt=dlog_dt,
        dlog_decay=dlog_decay, dfrequency=dfrequency, db=db)
    return dlog_dt, dlog_decay, dfrequency, db


def _plain_hold(log_dt: Tensor, log_decay: Tensor, frequency: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = torch.stack([-log_decay.exp(), frequency], dim=-1)
    modes = discretise(a, b, b, log_dt.exp(), "zoh")
    return modes.log_radius, modes.angle, modes.b


def _kernel(log_radius: Tensor, angle: Tensor, b: Tensor, c: Tensor, length: int) -> Tensor:
    found = _kernel_shapes(log_radius, angle, b, c, length)
    run("weft_modes_kernel_forward", _ModesKernel(channels=b.shape[0], modes=b.shape[1], steps=length),
        log_radius=log_radius, angle=angle, b=b, c=c, kernel=found)
    return found


def _kernel_shapes(log_radius: Tensor, angle: Tensor, b: Tensor, c: Tensor, length: int) -> Tensor:
    return b.new_empty(b.shape[0], length)


def _kernel_backward(dkernel: Tensor, log_radius: Tensor, angle: Tensor, b: Tensor, c: Tensor,
                     length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the tensors of `_kernel`."""
    dlog_radius, dangle, db, dc = _like(log_radius, angle, b, c)
    run("weft_modes_kernel_backward", _ModesKernel(channels=b.shape[0], modes=b.shape[1], steps=length),
        log_radius=log_radius, angle=angle, b=b, c=c, dkernel=dkernel, dlog_radius=dlog_radius, dangle=dangle, db=db,
        dc=dc)
    return dlog_radius, dangle, db, dc


def _plain_kernel(log_radius: Tensor, angle: Tensor, b: Tensor, c: Tensor, length: int) -> Tensor:
    return blocks_kernel(Modes(log_radius, angle, b, c), length)


_HOLD = differentiable("native_hold", _hold, _hold_shapes, _hold_backward, _plain_hold, 4)
_KERNEL = differentiable("native_modes_kernel", _kernel, _kernel_shapes, _kernel_backward, _plain_kernel, 4)


def _kernel_flops(log_radius: Tensor, angle: Tensor, b: Tensor, c: Tensor, length: int) -> int:
    """The next power of each mode, four products and two sums, and the sum over modes, for every lag."""
    return 7 * log_radius.numel() * length


def _kernel_backward_flops(dkernel: Tensor, log_radius: Tensor, *_: Any) -> int:
    """The next power, and two sums of a number times a complex one, which are four products and four sums, for every
    lag. That a gradient is multiplied by its lag is not counted: it is done once for all rates of a mode."""
    return 14 * log_radius.numel() * dkernel.shape[1]


KERNEL_FLOPS: Mapping[str, Callable[..., int]] = {
    "weft.native_modes_kernel": _kernel_flops, "weft.native_modes_kernel_backward": _kernel_backward_flops}


def _no_flops(*_: Any) -> int:
    """None are counted: no sum runs over tokens or features."""
    return 0


HOLD_FLOPS: Mapping[str, Callable[..., int]] = {"weft.native_hold": _no_flops, "weft.native_hold_backward": _no_flops}
