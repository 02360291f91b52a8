"""The costs of a run on this machine: the memory of training and of decoding, and their least times."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.analysis.cost_plan import Plan, RunCosts, WorkCosts
from weft.analysis.matmul import copy_bandwidth, matmul_rate
from weft.analysis.memory import States
from weft.ops.processor import main_memory

ASSUMPTIONS = (
    "Training: AdamW, whose two numbers for each weight are counted, activations of a whole batch, nothing recomputed, "
    "one process; the optimiser's own work and evaluation are left out.",
    "Decoding: a token reads every weight that it uses and the whole state once, and the prompt fills the context.",
    "Times are lower bounds: every product is as fast as a large square one, and memory as a copy, both measured now.",
    "Memory does not count the program itself (about 0.5 GB with PyTorch) and what operations need for a moment.",
)


def run_here(found: Plan, *, rate: Callable[[torch.dtype], float] = matmul_rate,
             bandwidth: Callable[[], float] = copy_bandwidth, memory: int | None = None) -> RunCosts | None:
    """The costs of training and decoding on this machine; None for a counted model, which has no such steps.

    Args:
        found: the plan of the model.
        rate: measures the operations per second of products in a dtype.
        bandwidth: measures the bytes per second of a copy.
        memory: bytes of this machine's main memory; None: as the system says.
    """
    if found.step is None or found.training is None or found.flops is None:
        return None
    there = main_memory() if memory is None else memory
    speed, copy = rate(getattr(torch, found.dtype)), bandwidth()
    kept = found.training.weights + found.training.gradients + found.training.optimizer + found.buffers
    seconds, needed = found.step.flops / speed, kept + found.step.activations
    tokens = found.step.batch * found.step.context
    train = WorkCosts(found.batch, found.context, needed, _fits(needed, there), seconds, tokens / seconds)
    decode = _decode(found, speed, copy, there)
    assumed = tuple(line for line in ASSUMPTIONS if decode is not None or not line.startswith("Decoding"))
    return RunCosts(there, speed, copy, train, decode, assumed)


def _decode(found: Plan, speed: float, copy: float, there: int) -> WorkCosts | None:
    if found.states is None or not found.states.sizes or found.flops is None:
        return None
    weights, state = found.weights[found.dtype], state_at(found.states, found.context)
    needed = weights + found.buffers + state
    used = weights * found.parameters.active / max(found.parameters.total, 1)
    flops = 2 * found.parameters.active * found.batch
    seconds = max((used + state) / copy, flops / speed)
    prompt = found.flops.visible * found.batch * found.context / speed
    return WorkCosts(found.batch, found.context, needed, _fits(needed, there), seconds, found.batch / seconds, prompt)


def state_at(states: States, context: int) -> int:
    """Bytes of the state after ``context`` tokens, on the line through the two nearest sizes that are known."""
    sizes = sorted(states.sizes, key=lambda size: size.context)
    below = [size for size in sizes if size.context <= context]
    above = [size for size in sizes if size.context > context]
    if len(sizes) < 2 or (below and below[-1].context == context):
        return below[-1].bytes if below else sizes[0].bytes
    first, second = (below[-1], above[0]) if below and above else (sizes[-2:] if below else sizes[:2])
    slope = (second.bytes - first.bytes) / (second.context - first.context)
    return max(0, round(first.bytes + slope * (context - first.context)))


def _fits(needed: int, there: int) -> bool | None:
    return needed <= there if there else None
