"""The linear recurrence by Triton, forward and backward, in float32 on an NVIDIA GPU.

For decays that all features of a key share, or none: linear attention, retention, Mamba-2. The state before each chunk
of 64 tokens is there while a pass runs, and so is, in the backward pass, its gradient: E F / 64 numbers a token and
head; between the passes nothing is kept but the arguments. Gradients that heads share are summed here, in one order,
so that a call gives the same bits every time.

Queries and keys may be in bfloat16, as the layers of such a model have them: then a product of both is one of bfloat16,
which is exact, and one of either with numbers in float32 is three, where two in float32 take three of TF32 at half the
rate. Results are in float32 all the same. The sources are `kernels/linear_recurrence.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.linear_recurrence import LinearRecurrenceCall, Recurred, by_feature, chunked_backward_flops, chunked_flops
from weft.ops.linear_recurrence_chunks import forward as plain
from weft.ops.linear_recurrence_chunks import shapes
from weft.ops.operator import differentiable
from weft.ops.triton.library import devices, interpreted, kernels, offer, on_device_of, why_not

CHUNK = 64
"""Tokens of a chunk."""

Slopes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Gradients of q, k, v, the logarithm of the decay (empty where there is none) and the state before."""

WIDE = (9, 10)
"""Generations of GPUs (compute capability) whose programs have the 192 KiB of shared memory that tiles of 64 by 64 take
in the backward pass; those of 32 take 88."""


@final
class Tiles(NamedTuple):
    """How the work of a program is cut.

    Attributes:
        side: of the largest tile of a state.
        precision: of products, as `triton.language.dot` names it.
    """

    side: int = 64
    warps: int = 4
    precision: str = "tf32x3"

    def of(self, size: int) -> int:
        """The side of a tile for so many features; the hardware's products have sides of 16 at least."""
        return min(max(16, 1 << (size - 1).bit_length()), self.side)

    def blocks(self, size: int) -> int:
        """Tiles that hold so many features."""
        return -(-size // self.of(size))


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs and the state after the last token."""
    found: tuple[Tensor, Tensor] = _forward(q, k, v, log_decay, before)
    return found


def _sizes(q: Tensor, v: Tensor, log_decay: Tensor | None, tiles: Tiles) -> dict[str, Any]:
    """The sizes that the kernels are compiled for, and where a token's decay lies."""
    row, step = (0, 0) if log_decay is None else (
        stride if size > 1 else 0 for size, stride in zip(log_decay.shape[:2], log_decay.stride()[:2], strict=True))
    return {"row_stride": row, "step_stride": step, "DECAYS": log_decay is not None, "PRECISION": tiles.precision,
            "CHUNK": CHUNK, "BE": tiles.of(q.shape[3]), "BF": tiles.of(v.shape[3]), "num_warps": tiles.warps}


def _states(k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor, tiles: Tiles,
            sizes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The state before each chunk, [B,K,T/64,E,F], and after the last."""
    rows, heads, keys, values = before.shape
    kept = before.new_empty(rows, heads, -(-v.shape[1] // CHUNK), keys, values)
    after = torch.empty_like(before)
    kernels("linear_recurrence").states[rows * heads, tiles.blocks(keys), tiles.blocks(values)](
        k, v, log_decay, before, kept, after, v.shape[1], k.shape[2], heads, keys, values, **sizes)
    return kept, after


def _contiguous(*given: Tensor | None) -> list[Any]:
    return [None if x is None else x.contiguous() for x in given]


def run_forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor,
                tiles: Tiles) -> tuple[Tensor, Tensor]:
    """The forward operator, by tiles."""
    q, k, v, log_decay, before = _contiguous(q, k, v, log_decay, before)
    (y, _), sizes = shapes(q, k, v, log_decay, before), _sizes(q, v, log_decay, tiles)
    with on_device_of(q):
        kept, after = _states(k, v, log_decay, before, tiles, sizes)
        kernels("linear_recurrence").outputs[len(v) * y.shape[2] * kept.shape[2], tiles.blocks(v.shape[3])](
            q, k, v, log_decay, kept, y, v.shape[1], q.shape[2], k.shape[2], v.shape[2], q.shape[3], v.shape[3],
            **sizes)
    return y, after


def run_backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                 before: Tensor, tiles: Tiles) -> Slopes:
    """The backward operator, by tiles."""
    grad, grad_after, q, k, v, log_decay, before = _contiguous(grad, grad_after, q, k, v, log_decay, before)
    (rows, steps, heads, values), keys, wide = v.shape, q.shape[3], grad.shape[2]
    sizes = _sizes(q, v, log_decay, tiles)
    dq, dk = (v.new_empty(rows, steps, wide, keys) for _ in range(2))
    dv, dbefore = v.new_empty(rows, steps, wide, values), torch.empty_like(before)
    dlog = v.new_empty(0 if log_decay is None else (rows, steps, wide))
    with on_device_of(q):
        kept, _ = _states(k, v, log_decay, before, tiles, sizes)
        leaving = torch.empty_like(kept)
        kernels("linear_recurrence").states_backward[rows * heads, tiles.blocks(keys), tiles.blocks(values)](
            q, grad, log_decay, grad_after, leaving, dbefore, steps, q.shape[2], heads, keys, values, **sizes)
        kernels("linear_recurrence").backward[rows * wide * kept.shape[2],](
            q, k, v, log_decay, grad, kept, leaving, dq, dk, dv, dlog, steps, q.shape[2], k.shape[2], heads, keys,
            values, **sizes)
    slopes = dlog if log_decay is None else _shared(dlog[..., None], heads).sum_to_size(log_decay.shape)
    return _shared(dq, q.shape[2]), _shared(dk, k.shape[2]), _shared(dv, heads), slopes, dbefore


def _shared(x: Tensor, heads: int) -> Tensor:
    """Gradients [B,T,O,E] of what each of ``heads`` consecutive groups of heads shares."""
    return x if x.shape[2] == heads else x.unflatten(2, (heads, -1)).sum(3)


def _run_forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    return run_forward(q, k, v, log_decay, before, tiles_for(q))


def _run_backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                  before: Tensor) -> Slopes:
    return run_backward(grad, grad_after, q, k, v, log_decay, before, tiles_for(q))


def tiles_for(x: Tensor) -> Tiles:
    """The largest tiles whose operands the shared memory of the device holds."""
    if interpreted():
        return Tiles(precision="ieee")
    return Tiles() if not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] in WIDE else Tiles(side=32)


_forward = differentiable("triton_linear_recurrence", _run_forward, shapes, _run_backward, plain, 5)


def _recurrence(call: LinearRecurrenceCall) -> Recurred:
    return recurrence(*call)


def _hindrance(call: LinearRecurrenceCall) -> str | None:
    """Why Triton cannot serve."""
    if by_feature(call.log_decay):
        return "its decays differ between features"
    if not (call.q.numel() and call.v.numel()):
        return "there are no rows or no features"
    if any(each is not None and each.dtype != torch.float32 for each in call[2:]):
        return "values, decays or states are not in float32"
    if call.k.dtype != call.q.dtype:
        return "queries and keys are of two dtypes"
    return why_not()


FORM: Form[LinearRecurrenceCall, Recurred] = Form(
    "triton", _recurrence, "chunks of 64 tokens by Triton", devices=devices(),
    dtypes=frozenset({torch.float32, torch.bfloat16}), transformed=False, serves=_hindrance, offer=offer(),
    flops={"weft.triton_linear_recurrence": chunked_flops,
           "weft.triton_linear_recurrence_backward": chunked_backward_flops},
    known_as=("cuda", "gpu"))
"""Of `weft.ops.linear_recurrence`."""
