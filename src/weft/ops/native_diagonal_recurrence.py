"""The diagonal recurrence in C, forward and backward, in float32 on a processor; see `weft.ops.diagonal_recurrence`.

A thread takes some features of one row through all steps, so that the state stays in registers and each number of the
call is read once. The sources are `weft/ops/native/diagonal_recurrence.c` and what it includes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.native.library import ADDRESS, COUNT, run, structure

_DiagonalCall = structure((ADDRESS, "logs x before h dh dx dlogs dbefore"), (COUNT, "batch steps width next"))
"""`Diagonal` of native/diagonal_recurrence.h."""


def forward(log_decay: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """h [B,T,D]."""
    h = torch.empty_like(x, memory_format=torch.contiguous_format)
    run("weft_diagonal_forward", _call(x), logs=log_decay, x=x, before=before, h=h)
    return h


def backward(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``log_decay``, ``x`` and ``before``."""
    dlogs, dx, dbefore = (torch.empty_like(each, memory_format=torch.contiguous_format) for each in (h, h, before))
    run("weft_diagonal_backward", _call(h), logs=log_decay, before=before, h=h, dh=dh, dx=dx, dlogs=dlogs,
        dbefore=dbefore)
    return dlogs, dx, dbefore


def _call(like: Tensor) -> Any:
    return _DiagonalCall(batch=like.shape[0], steps=like.shape[1], width=like.shape[2])
