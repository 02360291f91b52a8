"""Checks on tensor values that never choose a kernel.

On the CPU a condition is read and a clear error raised; on other devices it becomes an asynchronous assertion, so
nothing waits for the device; meta tensors hold no values to check. Inside ``torch.compile`` the same assertion is
traced.
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
    """The tensor with all that transforms of `torch.func` (`vmap`, `grad`) have wrapped it into taken off: every entry
    of every row of a batch."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
