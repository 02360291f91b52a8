"""The LSTM's recurrence over a chunk: `lstm_steps` step by step, and `lstm_scan`, the same with its own backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import Kernel, differentiate, operator
from weft.ops.recurrence import entering, one_step, resets, scan_flops, some_starts


class LSTMCall(NamedTuple):
    """The arguments of `lstm_steps`."""

    projected: Float[Tensor, "T B 4H"]
    weight: Float[Tensor, "4H H"]
    h: Float[Tensor, "B H"]
    c: Float[Tensor, "B H"]
    starts: Bool[Tensor, "T B"] | None


def lstm_steps(projected: Float[Tensor, "T B 4H"], weight: Float[Tensor, "4H H"], h: Float[Tensor, "B H"],
               c: Float[Tensor, "B H"], starts: Bool[Tensor, "T B"] | None = None) -> tuple[Tensor, Tensor]:
    """i, f, g, o = projected_t + W h_{t-1};  c_t = s(f) c_{t-1} + s(i) tanh(g);  h_t = s(o) tanh(c_t), s the sigmoid.

    Args:
        projected: W_x x_t + b, gates in the order i, f, g, o (PyTorch's).
        weight: W.
        h: the output before the first step.
        c: the cell before the first step.
        starts: where h and c are zero before the step.

    Returns:
        Outputs and cells after every step, [T,B,H] each.
    """
    outputs, cells = [], []
    for step, reset in zip(projected.unbind(0), resets(starts, projected.shape[0]), strict=True):
        if reset is not None:
            h, c = h.masked_fill(reset, 0), c.masked_fill(reset, 0)
        i, f, g, o = (step + h @ weight.t()).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
        cells.append(c)
    return torch.stack(outputs), torch.stack(cells)


def lstm_scan(projected: Float[Tensor, "T B 4H"], weight: Float[Tensor, "4H H"], h: Float[Tensor, "B H"],
              c: Float[Tensor, "B H"], starts: Bool[Tensor, "T B"] | None = None) -> tuple[Tensor, Tensor]:
    """`lstm_steps`, fast over many steps."""
    return LSTM_SCAN(LSTMCall(projected, weight, h, c, starts))


def _steps(call: LSTMCall) -> tuple[Tensor, Tensor]:
    return lstm_steps(*call)


def _scan(call: LSTMCall) -> tuple[Tensor, Tensor]:
    outputs, cells, _ = _forward(*call)
    return outputs, cells


def _run(projected: Tensor, weight: Tensor, h0: Tensor, c0: Tensor,
         starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, cells and, for the backward pass, the gates after their activations."""
    steps, (batch, size) = projected.shape[0], h0.shape
    gates, transposed = projected.new_empty(projected.shape), weight.t().contiguous()
    outputs, cells = (projected.new_empty(steps, batch, size) for _ in range(2))
    views = gates.view(steps, batch, 4, size)
    buffers = zip(projected.unbind(0), gates.unbind(0), views[:, :, :2].unbind(0),
                  *(v.unbind(0) for v in views.unbind(2)), outputs.unbind(0), cells.unbind(0),
                  resets(starts, steps), strict=True)
    h, c = h0, c0
    for step, gate, input_forget, i, f, g, o, h_next, c_next, reset in buffers:
        if reset is not None:
            h, c = h.masked_fill(reset, 0), c.masked_fill(reset, 0)
        torch.addmm(step, h, transposed, out=gate)
        input_forget.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, c, out=c_next).addcmul_(i, g)
        torch.tanh(c_next, out=h_next).mul_(o)
        h, c = h_next, c_next
    return outputs, cells, gates


def _run_shapes(projected: Tensor, weight: Tensor, h0: Tensor, c0: Tensor,
                starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    shape = (projected.shape[0], *h0.shape)
    return projected.new_empty(shape), projected.new_empty(shape), projected.new_empty(projected.shape)


def _run_backward(grad_outputs: Tensor, grad_cells: Tensor, weight: Tensor, h0: Tensor, c0: Tensor,
                  starts: Tensor | None, outputs: Tensor, cells: Tensor, gates: Tensor,
                  grad_gates: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of projected, weight, h0 and c0. The factors of each step's gradient are computed for all steps at
    once, so that one product and five element-wise operations are left in the loop. ``grad_gates`` is the gradient of
    the gates, which are kept for the backward pass and so have one where that pass is differentiated."""
    if grad_gates is not None:
        return _backward_steps(grad_outputs, grad_cells, weight, h0, c0, starts, outputs, cells, gates, grad_gates)
    steps, batch, size = outputs.shape
    forget = gates.view(steps, batch, 4, size)[:, :, 1]
    to_cell, to_three, to_out = _slopes(entering(c0, cells, starts), cells, gates.view(steps, batch, 4, size))
    grad_gates = gates.new_empty(gates.shape)
    views = grad_gates.view(steps, batch, 4, size)
    buffers = list(zip(grad_outputs.unbind(0), grad_cells.unbind(0), to_cell.unbind(0), to_three.unbind(0),
                       to_out.unbind(0), forget.unbind(0), grad_gates.unbind(0), views[:, :, :3].unbind(0),
                       views[:, :, 3].unbind(0), resets(starts, steps), strict=True))
    dh, dc = torch.zeros_like(h0), torch.zeros_like(c0)
    for grad_h, grad_c, cell, three, out, f, d_gates, d_three, d_out, reset in reversed(buffers):
        dh = dh + grad_h
        dc = torch.addcmul(dc + grad_c, dh, cell)
        torch.mul(three, dc[:, None], out=d_three)
        torch.mul(out, dh, out=d_out)
        dh, dc = d_gates @ weight, dc * f
        if reset is not None:
            dh, dc = dh.masked_fill(reset, 0), dc.masked_fill(reset, 0)
    grad_weight = grad_gates.flatten(0, 1).t() @ entering(h0, outputs, starts).flatten(0, 1)
    return grad_gates, grad_weight, dh, dc


def _slopes(c_before: Tensor, cells: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dh/dc [T,B,H], dc/d(i, f, g) [T,B,3,H] and dh/do [T,B,H], the gates taken before their activations."""
    i, f, g, o = gates.unbind(2)
    tanh = cells.tanh()
    three = torch.stack([g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)], dim=2)
    return o * (1 - tanh * tanh), three, tanh * o * (1 - o)


def _backward_steps(grad_outputs: Tensor, grad_cells: Tensor, weight: Tensor, h0: Tensor, c0: Tensor,
                    starts: Tensor | None, outputs: Tensor, cells: Tensor, gates: Tensor,
                    grad_gates: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_run_backward` without writing in place, so that autograd can differentiate it again."""
    split = gates.unflatten(2, (4, -1))
    to_cell, to_three, to_out = _slopes(entering(c0, cells, starts), cells, split)
    more = torch.zeros_like(gates) if grad_gates is None else grad_gates * _of_activations(split).flatten(2)
    parts, dh, dc = list[Tensor](), torch.zeros_like(h0), torch.zeros_like(c0)
    steps = list(zip(grad_outputs.unbind(0), grad_cells.unbind(0), to_cell.unbind(0), to_three.unbind(0),
                     to_out.unbind(0), split[:, :, 1].unbind(0), more.unbind(0), resets(starts, len(outputs)),
                     strict=True))
    for grad_h, grad_c, cell, three, out, f, extra, reset in reversed(steps):
        dh = dh + grad_h
        dc = dc + grad_c + dh * cell
        parts.append(torch.cat([(three * dc[:, None]).flatten(1), out * dh], dim=1) + extra)
        dh, dc = parts[-1] @ weight, dc * f
        if reset is not None:
            dh, dc = dh.masked_fill(reset, 0), dc.masked_fill(reset, 0)
    grad_projected = torch.stack(parts[::-1])
    grad_weight = grad_projected.flatten(0, 1).t() @ entering(h0, outputs, starts).flatten(0, 1)
    return grad_projected, grad_weight, dh, dc


def _of_activations(gates: Tensor) -> Tensor:
    """The slopes [T,B,4,H] of the gates' activations, from the gates after them."""
    i, f, g, o = gates.unbind(2)
    return torch.stack([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], dim=2)


def _backward_shapes(grad_outputs: Tensor, grad_cells: Tensor, weight: Tensor, h0: Tensor, c0: Tensor,
                     starts: Tensor | None, outputs: Tensor, cells: Tensor, gates: Tensor,
                     grad_gates: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return gates.new_empty(gates.shape), weight.new_empty(weight.shape), h0.new_empty(h0.shape), c0.new_empty(c0.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[1:], *output)


def _gradient(ctx: Any, grad_outputs: Tensor | None, grad_cells: Tensor | None,
              grad_gates: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing returns what it recomputes only once
    incoming = [torch.zeros_like(saved[-2]) if grad is None else grad for grad in (grad_outputs, grad_cells)]
    work: Kernel = _backward_steps if torch.is_grad_enabled() else _backward
    return *work(*incoming, *saved, grad_gates), None


_forward = operator("lstm_scan", _run, _run_shapes)
_backward = operator("lstm_scan_backward", _run_backward, _backward_shapes)
differentiate("lstm_scan", _gradient, _save)


def _examples(make: Make) -> Iterator[LSTMCall]:
    for steps, starts in ((6, some_starts(6, 3)), (33, None), (1, None)):
        yield LSTMCall(make(steps, 3, 16), make(16, 4), make(3, 4), make(3, 4), starts)


LSTM_SCAN = OPERATIONS.add(Operation(
    "lstm_scan", "the LSTM's recurrence over a chunk",
    Form(REFERENCE, _steps, "step by step"),
    Form("scan", _scan, "one operator; one product per weight gradient",
         transformed=False, worth=one_step, flops=scan_flops("lstm")),
    subject="projected", examples=_examples, known_as=("lstm",)))
