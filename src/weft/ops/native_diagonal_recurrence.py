"""The diagonal recurrence in C, forward and backward, in float32 on a processor; see `weft.ops.diagonal_recurrence`.

A thread takes some features of one row through all steps, so that the state stays in registers and each number of the
call is read once. The sources are `weft/ops/native/diagonal_recurrence.c` and what it includes.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from weft.ops.native.library import run


class _DiagonalCall(ctypes.Structure):
    """`Diagonal` of native/diagonal_recurrence.h."""

    _fields_ = (*((name, ctypes.c_void_p) for name in ("logs", "x", "before", "h", "dh", "dx", "dlogs", "dbefore")),
                *((name, ctypes.c_long) for name in ("batch", "steps", "width", "next")))


def forward(log_decay: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """h [B,T,D]."""
    h = torch.empty_like(x, memory_format=torch.contiguous_format)
    _run("weft_diagonal_forward", x, logs=log_decay.contiguous(), x=x.contiguous(), before=before.contiguous(), h=h)
    return h


def backward(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``log_decay``, ``x`` and ``before``."""
    dlogs, dx, dbefore = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (h, h, before))
    _run("weft_diagonal_backward", h, logs=log_decay.contiguous(), before=before.contiguous(), h=h.contiguous(),
         dh=dh.contiguous(), dx=dx, dlogs=dlogs, dbefore=dbefore)
    return dlogs, dx, dbefore


def _run(name: str, like: Tensor, **tensors: Tensor) -> None:
    call = _DiagonalCall(batch=like.shape[0], steps=like.shape[1], width=like.shape[2])
    for field, tensor in tensors.items():
        setattr(call, field, tensor.data_ptr())
    run(name, call)
