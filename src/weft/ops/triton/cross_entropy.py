"""The cross-entropy of a linear readout on an NVIDIA GPU: the logits of some tokens at a time by the library's product,
their softmax, sums and gradient by one kernel that writes the gradient over them.

Results are those of the form ``pieces`` of `weft.ops.linear_cross_entropy`, which takes a dozen passes over the logits
where this takes two. The gradient of the matrix is added up over pieces in float32 inside the product where the factors
are narrower (cuBLAS). The source is `kernels/cross_entropy.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.linear_cross_entropy import CrossEntropy, CrossEntropyCall, declared, flops, results, summed
from weft.ops.triton.library import devices, kernels, offer, on_device_of, why_not

PIECE_ENTRIES = 1 << 28
"""Logits held at once, 512 MiB in bfloat16: products that fill a GPU, and little beside what a model keeps there."""

BLOCK = 4096
"""Logits of a row that a program reads together."""


def _kernel(h: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scored: Tensor, softcap: float | None,
            smoothing: float, z_loss: float, step: int, dh_needed: bool, dweight_needed: bool,
            dbias_needed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    nats, _, dh, dweight, dbias = results(h, weight, bias, dh_needed, dweight_needed, dbias_needed)
    losses, slopes = torch.empty_like(nats), dh_needed or dweight_needed or dbias_needed
    for start in range(0, h.shape[0], step):
        rows = slice(start, start + step)
        some = h[rows]
        z = some @ weight.t() if bias is None else torch.addmm(bias, some, weight.t())
        _over(z, targets[rows], scored[rows], nats[rows], losses[rows], softcap, smoothing, z_loss, slopes)
        if dh_needed:
            torch.mm(z, weight, out=dh[rows])
        if dweight_needed:
            _add_product(dweight, z.t(), some)
        if dbias_needed:
            dbias += z.sum(0, dtype=dbias.dtype)
    return nats, losses.sum(), dh, dweight, dbias


def _over(z: Tensor, targets: Tensor, scored: Tensor, nats: Tensor, losses: Tensor, softcap: float | None,
          smoothing: float, z_loss: float, slopes: bool) -> None:
    """Write each token's sums, and with ``slopes`` the gradient of the logits over them."""
    if not z.numel():
        return
    block = min(BLOCK, max(16, 1 << (z.shape[1] - 1).bit_length()))
    with on_device_of(z):
        kernels("cross_entropy").rows[len(z),](
            z, targets, scored, nats, losses, z.shape[1], 1.0 if softcap is None else softcap, smoothing, z_loss,
            CAPPED=softcap is not None, SMOOTHED=smoothing > 0, SLOPES=slopes, BLOCK=block, num_warps=8)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to a matrix that may be wider."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a.to(total.dtype) @ b.to(total.dtype)


_summed = declared("triton_cross_entropy", _kernel)


def _run(call: CrossEntropyCall) -> CrossEntropy:
    return summed(_summed, call, PIECE_ENTRIES)


def _hindrance(call: CrossEntropyCall) -> str | None:
    if any(x is not None and x.dtype != call.h.dtype for x in (call.weight, call.bias)):
        return "its tensors are of several dtypes"
    if torch.is_autocast_enabled(call.h.device.type):
        return "autocast chooses the dtype of its products"
    return why_not()


FORM: Form[CrossEntropyCall, CrossEntropy] = Form(
    "triton", _run, "softmax and gradient in two passes by Triton", devices=devices(),
    dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}), transformed=False, serves=_hindrance,
    offer=offer(), flops={"weft.triton_cross_entropy": flops}, known_as=("cuda", "gpu"))
"""Of `weft.ops.linear_cross_entropy`."""
