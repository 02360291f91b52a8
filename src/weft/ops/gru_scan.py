"""The GRU's recurrence over a chunk: `gru_steps` step by step, and `gru_scan`, the same with its own backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import Kernel, differentiate, operator
from weft.ops.recurrence import entering, one_step, resets, scan_flops, some_starts


class GRUCall(NamedTuple):
    """The arguments of `gru_steps`."""

    projected: Float[Tensor, "T B 3H"]
    weight: Float[Tensor, "3H H"]
    bias: Float[Tensor, " H"]
    h: Float[Tensor, "B H"]
    starts: Bool[Tensor, "T B"] | None


def gru_steps(projected: Float[Tensor, "T B 3H"], weight: Float[Tensor, "3H H"], bias: Float[Tensor, " H"],
              h: Float[Tensor, "B H"], starts: Bool[Tensor, "T B"] | None = None) -> Float[Tensor, "T B H"]:
    """r = s(x_r + U_r h);  z = s(x_z + U_z h);  n = tanh(x_n + r (U_n h + b));  h' = (1 - z) n + z h, s the sigmoid.

    Args:
        projected: x_r, x_z, x_n = W x_t + b_x, PyTorch's order.
        weight: U_r, U_z, U_n.
        bias: b, which the reset gate multiplies.
        h: the output before the first step.
        starts: where h is zero before the step.
    """
    outputs = []
    for step, reset in zip(projected.unbind(0), resets(starts, projected.shape[0]), strict=True):
        h = h if reset is None else h.masked_fill(reset, 0)
        (x_r, x_z, x_n), (u_r, u_z, u_n) = step.chunk(3, dim=1), (h @ weight.t()).chunk(3, dim=1)
        r, z = (x_r + u_r).sigmoid(), (x_z + u_z).sigmoid()
        n = (x_n + r * (u_n + bias)).tanh()
        h = n + z * (h - n)
        outputs.append(h)
    return torch.stack(outputs)


def gru_scan(projected: Float[Tensor, "T B 3H"], weight: Float[Tensor, "3H H"], bias: Float[Tensor, " H"],
             h: Float[Tensor, "B H"], starts: Bool[Tensor, "T B"] | None = None) -> Float[Tensor, "T B H"]:
    """`gru_steps`, fast over many steps."""
    return GRU_SCAN(GRUCall(projected, weight, bias, h, starts))


def _steps(call: GRUCall) -> Tensor:
    return gru_steps(*call)


def _scan(call: GRUCall) -> Tensor:
    outputs: Tensor = _forward(*call)[0]
    return outputs


def _run(projected: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Outputs and, for the backward pass, r, z, U_n h + b and n, [T,B,4,H]."""
    steps, (batch, size) = projected.shape[0], h0.shape
    outputs, gates = projected.new_empty(steps, batch, size), projected.new_empty(steps, batch, 4, size)
    shift, transposed = torch.cat([bias.new_zeros(2 * size), bias]), weight.t().contiguous()
    inputs = projected.reshape(steps, batch, 3, size)
    buffers = zip(inputs[:, :, :2].unbind(0), inputs[:, :, 2].unbind(0), gates[:, :, :3].unbind(0),
                  gates[:, :, :2].unbind(0), *(v.unbind(0) for v in gates.unbind(2)), outputs.unbind(0),
                  resets(starts, steps), strict=True)
    h = h0
    for x_rz, x_n, recurrent, rz, r, z, u_n, n, h_next, reset in buffers:
        h = h if reset is None else h.masked_fill(reset, 0)
        recurrent.copy_(torch.addmm(shift, h, transposed).view(batch, 3, size))
        rz.add_(x_rz).sigmoid_()
        torch.addcmul(x_n, r, u_n, out=n).tanh_()
        h = torch.lerp(n, h, z, out=h_next)
    return outputs, gates


def _run_shapes(projected: Tensor, weight: Tensor, bias: Tensor, h0: Tensor,
                starts: Tensor | None) -> tuple[Tensor, Tensor]:
    steps, (batch, size) = projected.shape[0], h0.shape
    return projected.new_empty(steps, batch, size), projected.new_empty(steps, batch, 4, size)


def _run_backward(grad_outputs: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, starts: Tensor | None,
                  outputs: Tensor, gates: Tensor, grad_gates: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of projected, weight, bias and h0. The factors of each step's gradient are computed for all steps at
    once, so that one product and four element-wise operations are left in the loop. ``grad_gates`` is the gradient of
    the gates, which are kept for the backward pass and so have one where that pass is differentiated."""
    if grad_gates is not None:
        return _backward_steps(grad_outputs, weight, bias, h0, starts, outputs, gates, grad_gates)
    steps = len(outputs)
    slopes, to_n = _slopes(entering(h0, outputs, starts), gates)
    z = gates[:, :, 1]
    grad_recurrent, grad_h = slopes.new_empty(slopes.shape), outputs.new_empty(outputs.shape)
    buffers = list(zip(grad_outputs.unbind(0), slopes.unbind(0), z.unbind(0), grad_recurrent.unbind(0),
                       grad_recurrent.flatten(2).unbind(0), grad_h.unbind(0), resets(starts, steps), strict=True))
    dh = torch.zeros_like(h0)
    for grad, slope, keep, place, d_recurrent, total, reset in reversed(buffers):
        torch.add(dh, grad, out=total)
        torch.mul(slope, total[:, None], out=place)
        dh = torch.addmm(total * keep, d_recurrent, weight)
        dh = dh if reset is None else dh.masked_fill(reset, 0)
    return *_of_parameters(grad_recurrent, grad_h * to_n, entering(h0, outputs, starts)), dh


def _slopes(before: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """dh'/d(x_r + U_r h, x_z + U_z h, U_n h + b) [T,B,3,H] and dh'/dx_n [T,B,H]."""
    r, z, u_n, n = gates.unbind(2)
    to_n = (1 - z) * (1 - n * n)
    return torch.stack([to_n * u_n * r * (1 - r), (before - n) * z * (1 - z), to_n * r], dim=2), to_n


def _of_parameters(grad_recurrent: Tensor, grad_n: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of projected, weight and bias from those of the recurrent products and of x_n."""
    grad_projected = torch.cat([grad_recurrent[:, :, :2], grad_n[:, :, None]], dim=2).flatten(2)
    grad_weight = grad_recurrent.flatten(2).flatten(0, 1).t() @ before.flatten(0, 1)
    return grad_projected, grad_weight, grad_recurrent[:, :, 2].sum((0, 1))


def _backward_steps(grad_outputs: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, starts: Tensor | None,
                    outputs: Tensor, gates: Tensor, grad_gates: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_run_backward` without writing in place, so that autograd can differentiate it again."""
    before = entering(h0, outputs, starts)
    slopes, to_n = _slopes(before, gates)
    more, more_n = _of_gates(torch.zeros_like(gates) if grad_gates is None else grad_gates, gates)
    totals, recurrent, dh = list[Tensor](), list[Tensor](), torch.zeros_like(h0)
    steps = list(zip(grad_outputs.unbind(0), slopes.unbind(0), gates[:, :, 1].unbind(0), more.unbind(0),
                     resets(starts, len(outputs)), strict=True))
    for grad, slope, keep, extra, reset in reversed(steps):
        totals.append(dh + grad)
        recurrent.append(slope * totals[-1][:, None] + extra)
        dh = totals[-1] * keep + recurrent[-1].flatten(1) @ weight
        dh = dh if reset is None else dh.masked_fill(reset, 0)
    grad_n = torch.stack(totals[::-1]) * to_n + more_n
    return *_of_parameters(torch.stack(recurrent[::-1]), grad_n, before), dh


def _of_gates(grad_gates: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The contributions of the gradients of r, z, U_n h + b and n to those of the recurrent products [T,B,3,H] and of
    x_n."""
    (r, z, u_n, n), (grad_r, grad_z, grad_u, grad_n) = gates.unbind(2), grad_gates.unbind(2)
    to_n = grad_n * (1 - n * n)
    return torch.stack([(grad_r + to_n * u_n) * r * (1 - r), grad_z * z * (1 - z), to_n * r + grad_u], dim=2), to_n


def _backward_shapes(grad_outputs: Tensor, weight: Tensor, bias: Tensor, h0: Tensor, starts: Tensor | None,
                     outputs: Tensor, gates: Tensor,
                     grad_gates: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    steps, batch, size = outputs.shape
    return (gates.new_empty(steps, batch, 3 * size), weight.new_empty(weight.shape), bias.new_empty(bias.shape),
            h0.new_empty(h0.shape))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[1:], *output)


def _gradient(ctx: Any, grad_outputs: Tensor | None, grad_gates: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: what a checkpoint computes again it gives once
    work: Kernel = _backward_steps if torch.is_grad_enabled() else _backward
    given = torch.zeros_like(saved[-2]) if grad_outputs is None else grad_outputs
    return *work(given, *saved, grad_gates), None


_forward = operator("gru_scan", _run, _run_shapes)
_backward = operator("gru_scan_backward", _run_backward, _backward_shapes)
differentiate("gru_scan", _gradient, _save)


def _examples(make: Make) -> Iterator[GRUCall]:
    for steps, starts in ((6, some_starts(6, 3)), (33, None), (1, None)):
        yield GRUCall(make(steps, 3, 12), make(12, 4), make(4), make(3, 4), starts)


GRU_SCAN = OPERATIONS.add(Operation(
    "gru_scan", "the GRU's recurrence over a chunk",
    Form(REFERENCE, _steps, "step by step"),
    Form("scan", _scan, "one operator; one product per weight gradient",
         transformed=False, worth=one_step, flops=scan_flops("gru")),
    subject="projected", examples=_examples, known_as=("gru",)))
