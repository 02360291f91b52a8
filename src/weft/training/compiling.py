"""`torch.compile` for the training pass, with an error message that gives the remedy."""

from __future__ import annotations

from typing import Any

import torch

from weft.core.compiling import compiler_errors
from weft.core.model import ModelState
from weft.tasks import BatchSums
from weft.training.gradient import Forward


def compiled(forward: Forward, *, backend: str = "inductor") -> Forward:
    """Compile ``forward`` for fixed shapes. Compilation takes half a minute in the first call, and once more when a
    batch with documents that begin inside a row follows one without, or the other way round.

    Args:
        forward: of a task.
        backend: of `torch.compile`; "aot_eager" traces the same graphs and compiles no code.

    The compiled function raises `UnsupportedError` where this model cannot be compiled on this machine.
    """
    from torch._dynamo import config as tracing
    from torch._functorch import config as partitioning
    from torch._inductor import config as inductor

    fast = torch.compile(forward, dynamic=False, backend=backend)

    def run(given: Any, state: ModelState | None) -> BatchSums:
        # Allows the partitioner to recompute element-wise results in the backward pass even where a matrix product
        # needs them: an eighth less memory on the benchmark's model (without a compiler: `ops.rematerialize`).
        # "deterministic": otherwise Inductor chooses kernels by timing them, and another process may choose others,
        # which round otherwise.
        # "skip_fwd_side_effects...": what a block that is run again receives from other processes, it receives once.
        with (compiler_errors("training.compute.compile"), inductor.patch(deterministic=True),
              tracing.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True),
              partitioning.patch(ban_recompute_materialized_backward=False)):
            return fast(given, state)

    return run
