"""Checks of tensor values, on which no choice of a kernel depends.

On the CPU the condition is read and an error raised. On other devices it becomes an asynchronous assertion, so that
the host does not wait for the device; meta tensors hold no values to check. ``torch.compile`` traces the same
assertion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.compiling import compiler_traces
from weft.core.errors import UserError


def require(condition: Tensor, error: type[UserError], what: str, *, where: str, remedy: str) -> None:
    """Raise ``error(what, where=where, remedy=remedy)`` unless every entry of ``condition`` is true."""
    # What `torch.compiler.is_compiling` comes to, without its two calls.
    if compiler_traces() or torch.compiler._is_compiling_flag or condition.device.type not in ("cpu", "meta"):
        torch._assert_async(condition.all(), f"{where}: {what} {remedy}")
    elif condition.device.type == "cpu" and not bool(_whole(condition).all()):
        raise error(what, where=where, remedy=remedy)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor without the wrappers of `torch.func` transforms (`vmap`, `grad`): the entries of all rows of a batch.
    A wrapped tensor has no value that the host could read."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
