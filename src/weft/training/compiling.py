"""`torch.compile` for the training pass, with an error that says what to do."""

from __future__ import annotations

from typing import Any

import torch

from weft.core.errors import UnsupportedError
from weft.core.model import ModelState
from weft.tasks import Scored
from weft.training.gradient import Forward


def compiled(forward: Forward) -> Forward:
    """``forward`` compiled for fixed shapes, which takes half a minute in its first call, and again where batches
    with and without documents that begin inside a row alternate.

    The function raises `UnsupportedError` where this model or machine cannot be compiled.
    """
    from torch._dynamo.exc import TorchDynamoException  # imports the compiler, which takes a second
    from torch._functorch import config as partitioning

    fast = torch.compile(forward, dynamic=False)

    def run(given: Any, state: ModelState | None) -> Scored:
        try:
            # What the backward pass can make again in one sweep it need not find kept, even where a matrix product
            # takes it in: an eighth less memory on the benchmark's model (eagerly: `ops.rematerialize`).
            with partitioning.patch(ban_recompute_materialized_backward=False):
                return fast(given, state)
        except TorchDynamoException as error:
            reason = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:2])
            raise UnsupportedError(f"torch.compile failed: {reason}.", where="training.compute.compile",
                                   remedy="Leave it out, or see `weft doctor` for what the compiler needs.") from None

    return run
