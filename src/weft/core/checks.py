"""Checks on tensor values that never choose a kernel.

On the CPU a condition is read and a clear error raised; on other devices it becomes an asynchronous assertion, so
nothing waits for the device. Inside ``torch.compile`` the same assertion is traced.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.errors import UserError


def require(condition: Tensor, error: UserError) -> None:
    """Raise ``error`` unless every entry of ``condition`` is true."""
    if torch.compiler.is_compiling() or condition.device.type != "cpu":
        torch._assert_async(condition.all(), str(error))
    elif not bool(condition.all()):
        raise error
