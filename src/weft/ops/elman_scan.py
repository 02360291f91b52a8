"""The Elman network's recurrence over a chunk: `elman_steps` step by step, `elman_scan` with its own backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import Kernel, differentiate, operator
from weft.ops.recurrence import entering, one_step, resets, scan_flops, some_starts

Activation = Literal["tanh", "sigmoid", "relu"]


class ElmanCall(NamedTuple):
    """The arguments of `elman_steps`."""

    projected: Float[Tensor, "T B H"]
    weight: Float[Tensor, "H H"]
    h: Float[Tensor, "B H"]
    activation: Activation
    starts: Bool[Tensor, "T B"] | None


def elman_steps(projected: Float[Tensor, "T B H"], weight: Float[Tensor, "H H"], h: Float[Tensor, "B H"],
                activation: Activation, starts: Bool[Tensor, "T B"] | None = None) -> Float[Tensor, "T B H"]:
    """h_t = f(projected_t + W h_{t-1}) for every step.

    Args:
        projected: W_x x_t + b.
        weight: W.
        h: the output before the first step.
        starts: where h is zero before the step.
    """
    outputs = []
    for step, reset in zip(projected.unbind(0), resets(starts, projected.shape[0]), strict=True):
        h = h if reset is None else h.masked_fill(reset, 0)
        h = _activate(step + h @ weight.t(), activation)
        outputs.append(h)
    return torch.stack(outputs)


def elman_scan(projected: Float[Tensor, "T B H"], weight: Float[Tensor, "H H"], h: Float[Tensor, "B H"],
               activation: Activation, starts: Bool[Tensor, "T B"] | None = None) -> Float[Tensor, "T B H"]:
    """`elman_steps`, fast over many steps."""
    return ELMAN_SCAN(ElmanCall(projected, weight, h, activation, starts))


def _steps(call: ElmanCall) -> Tensor:
    return elman_steps(*call)


def _scan(call: ElmanCall) -> Tensor:
    outputs: Tensor = _forward(call.projected, call.weight, call.h, call.starts, call.activation)
    return outputs


def _activate(x: Tensor, activation: str) -> Tensor:
    if activation == "tanh":
        return x.tanh()
    return x.sigmoid() if activation == "sigmoid" else x.relu()


def _slope(h: Tensor, activation: str) -> Tensor:
    """f' in terms of h, the value of f."""
    if activation == "tanh":
        return 1 - h * h
    return h * (1 - h) if activation == "sigmoid" else (h > 0).to(h.dtype)


def _run(projected: Tensor, weight: Tensor, h0: Tensor, starts: Tensor | None, activation: str) -> Tensor:
    # Operators run without gradients, so results may be written into the outputs in place.
    outputs, transposed = projected.new_empty(projected.shape), weight.t().contiguous()
    h = h0
    for step, place, reset in zip(projected.unbind(0), outputs.unbind(0), resets(starts, len(outputs)), strict=True):
        h = h if reset is None else h.masked_fill(reset, 0)
        h = place.copy_(_activate(torch.addmm(step, h, transposed), activation))
    return outputs


def _run_shapes(projected: Tensor, weight: Tensor, h0: Tensor, starts: Tensor | None, activation: str) -> Tensor:
    return projected.new_empty(projected.shape)


def _run_backward(grad_outputs: Tensor, weight: Tensor, h0: Tensor, starts: Tensor | None, outputs: Tensor,
                  activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of projected, weight and h0. The loop over steps makes only dh; the gradient of W is one product."""
    slopes, grad_projected = _slope(outputs, activation), outputs.new_empty(outputs.shape)
    buffers = list(zip(grad_outputs.unbind(0), slopes.unbind(0), grad_projected.unbind(0),
                       resets(starts, len(outputs)), strict=True))
    dh = torch.zeros_like(h0)
    for grad, slope, place, reset in reversed(buffers):
        dh = torch.mul(dh + grad, slope, out=place) @ weight
        dh = dh if reset is None else dh.masked_fill(reset, 0)
    return grad_projected, grad_projected.flatten(0, 1).t() @ entering(h0, outputs, starts).flatten(0, 1), dh


def _backward_steps(grad_outputs: Tensor, weight: Tensor, h0: Tensor, starts: Tensor | None, outputs: Tensor,
                    activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """`_run_backward` without writing in place, so that autograd can differentiate it again."""
    slopes, gradients, dh = _slope(outputs, activation), list[Tensor](), torch.zeros_like(h0)
    steps = list(zip(grad_outputs.unbind(0), slopes.unbind(0), resets(starts, len(outputs)), strict=True))
    for grad, slope, reset in reversed(steps):
        gradients.append((dh + grad) * slope)
        dh = gradients[-1] @ weight
        dh = dh if reset is None else dh.masked_fill(reset, 0)
    grad_projected = torch.stack(gradients[::-1])
    return grad_projected, grad_projected.flatten(0, 1).t() @ entering(h0, outputs, starts).flatten(0, 1), dh


def _backward_shapes(grad_outputs: Tensor, weight: Tensor, h0: Tensor, starts: Tensor | None, outputs: Tensor,
                     activation: str) -> tuple[Tensor, Tensor, Tensor]:
    return outputs.new_empty(outputs.shape), weight.new_empty(weight.shape), h0.new_empty(h0.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:4], output)
    ctx.activation = inputs[4]


def _gradient(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
    work: Kernel = _backward_steps if torch.is_grad_enabled() else _backward
    return *work(grad_outputs, *ctx.saved_tensors, ctx.activation), None, None


_forward = operator("elman_scan", _run, _run_shapes)
_backward = operator("elman_scan_backward", _run_backward, _backward_shapes)
differentiate("elman_scan", _gradient, _save)


def _examples(make: Make) -> Iterator[ElmanCall]:
    for activation in get_args(Activation):
        yield ElmanCall(make(6, 3, 4), make(4, 4), make(3, 4), activation, some_starts(6, 3))
    yield ElmanCall(make(33, 2, 3), make(3, 3), make(2, 3), "tanh", None)
    yield ElmanCall(make(1, 2, 3), make(3, 3), make(2, 3), "tanh", None)


ELMAN_SCAN = OPERATIONS.add(Operation(
    "elman_scan", "the Elman network's recurrence over a chunk",
    Form(REFERENCE, _steps, "step by step"),
    Form("scan", _scan, "one operator; one product per weight gradient",
         transformed=False, worth=one_step, flops=scan_flops("elman")),
    subject="projected", examples=_examples, known_as=("elman",)))
