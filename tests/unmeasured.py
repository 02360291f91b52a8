"""What the compiler measures of itself after each graph, left out wherever the tests compile.

Some hundred small graphs are compiled by the tests, and no test reads these measurements.
"""

from __future__ import annotations

import os
from typing import Any

# It would search for cycles after each graph, which takes as long as tracing a call.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

import torch


def unmeasured(*_: Any) -> float:
    """In place of the microseconds that a graph's guards take, for PyTorch's log: the processor's caches are emptied
    before they are measured, which takes longer (45 ms) than compiling some graphs."""
    return 0.0


guards: Any = torch._C._dynamo.guards  # type: ignore[attr-defined]
if hasattr(guards, "profile_guard_manager"):  # not in every version
    guards.profile_guard_manager = unmeasured
