"""`torch.compile` for the training pass, with an error that says what to do."""

from __future__ import annotations

from typing import Any

import torch

from weft.core.compiling import compiler_errors
from weft.core.model import ModelState
from weft.tasks import Scored
from weft.training.gradient import Forward


def compiled(forward: Forward) -> Forward:
    """``forward`` compiled for fixed shapes, which takes half a minute in its first call, and again where batches
    with and without documents that begin inside a row alternate.

    The function raises `UnsupportedError` where this model or machine cannot be compiled.
    """
    from torch._functorch import config as partitioning

    fast = torch.compile(forward, dynamic=False)

    def run(given: Any, state: ModelState | None) -> Scored:
        # What the backward pass can make again in one sweep it need not find kept, even where a matrix product takes it
        # in: an eighth less memory on the benchmark's model (eagerly: `ops.rematerialize`).
        with (compiler_errors("training.compute.compile"),
              partitioning.patch(ban_recompute_materialized_backward=False)):
            return fast(given, state)

    return run
