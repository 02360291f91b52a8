"""How well a run uses the machine: model FLOPs utilisation, and memory.

Floating-point operations of a training step, and how many a second this machine can do.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from functools import lru_cache
from itertools import product
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.flops import forward_flops
from weft.analysis.matmul import matmul_rate
from weft.analysis.shapes import shape_of
from weft.core.model import Model, parse_model
from weft.tasks import Lengths
from weft.training.compute import Compute
from weft.training.config import RunConfig

GPU_SIZE, REPEATS = 8192, 5
PATIENCE = 10.0
"""Seconds of training."""


class Utilisation:
    """Model FLOPs utilisation: the operations of the model that a run does per second, divided by those of a large
    matrix product on this machine, in the run's dtype and by its route (Chowdhery et al. 2022, appendix B).

    Counting and measuring take seconds, once in a process, so neither is done in the first `PATIENCE` seconds of
    training.

    Args:
        lengths: tokens of its rows; padding is no work of the model, so it is not counted.
        compute: of the run; to be in force whenever `mfu` is called.
        device: where the run computes.
        rows: of a batch, on average.
    """

    def __init__(self, config: RunConfig, lengths: Lengths, compute: Compute, device: torch.device,
                 rows: float) -> None:
        self._config, self._lengths, self._compute, self._device, self._rows = config, lengths, compute, device, rows

    def mfu(self, steps_per_second: float, seconds: float) -> float | None:
        """The share at that pace; None for a run that has trained for fewer than `PATIENCE` ``seconds``.

        Args:
            steps_per_second: whole steps, divided by the number of ranks that share each.
        """
        if seconds < PATIENCE:
            return None
        training = self._config.training
        rows = steps_per_second * self._rows * training.accumulation
        peak = _peak(training.dtype_on(self._device), self._compute, str(self._device))
        return rows * _flops_per_row(json.dumps(self._config.model.dump()), self._lengths) / peak


def resident_bytes() -> int | None:
    """Main memory of this process, in bytes; where the operating system does not report it, the peak so far; None on
    Windows."""
    now = Path("/proc/self/statm")
    if now.exists():
        return int(now.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def allocated_bytes(device: torch.device) -> int | None:
    """Memory of the accelerator that tensors take, in bytes; None for a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


@lru_cache(maxsize=64)
def _flops_per_row(model: str, lengths: Lengths) -> float:
    """The key is the configuration as text, so that runs of one model count once."""
    return flops_per_row(shape_of(parse_model(json.loads(model)), FakeTensorMode(), None), lengths)


@lru_cache(maxsize=8)
def _peak(dtype: torch.dtype, compute: Compute, device: str) -> float:
    """Operations per second of a large matrix product; ``compute`` is in the cache's key because they depend on it."""
    place = torch.device(device)
    return _gpu_peak(dtype, place) if place.type == "cuda" else peak_flops(dtype)


def _gpu_peak(dtype: torch.dtype, device: torch.device) -> float:
    a, b = torch.randn(2, GPU_SIZE, GPU_SIZE, device=device, dtype=dtype)
    times: list[float] = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        a @ b
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return 2 * GPU_SIZE**3 / statistics.median(times[1:])


BACKWARD = 2
"""The backward pass multiplies each matrix twice, for the gradients of its input and of its weights."""


def model_flops_per_token(model: Model, context: int) -> float:
    """Operations of a forward and a backward pass over rows of ``context`` tokens, per token; see `flops_per_row`."""
    return flops_per_row(model, Lengths(context)) / context


def flops_per_row(model: Model, lengths: Lengths) -> float:
    """Operations of a forward and a backward pass over one row, without padding.

    Three times those of the forward pass, as counted by `weft.analysis.flops.forward_flops`, with attention scores
    only where the mask allows. What is computed again (activation checkpointing) is not work of the model
    (Chowdhery et al. 2022, appendix B). A mean length that is no whole number is interpolated between its neighbours:
    exact for all that grows in proportion to a length; attention scores, which grow with its square, are counted as if
    all rows had the mean length.

    Args:
        model: is not changed; only its shapes are read.
        lengths: tokens of the row, and of its source for a model that reads one (None: as many).
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    shapes = shape_of(model, mode, None)

    def forward(tokens: int, source: int | None) -> float:
        return forward_flops(shapes, mode, tokens, source).visible * tokens

    return (1 + BACKWARD) * sum(share * other * forward(tokens, source) for (tokens, share), (source, other) in product(
        _neighbours(lengths.tokens), [(None, 1.0)] if lengths.source is None else _neighbours(lengths.source)))


def peak_flops(dtype: torch.dtype) -> float:
    """Operations a second of a large square product in ``dtype`` on this CPU, by the fastest route. The measurement
    takes a moment; make it once in a run."""
    return matmul_rate(dtype)


def _neighbours(length: float) -> list[tuple[int, float]]:
    """The whole numbers on both sides of a length, with their weights in a linear interpolation."""
    below = math.floor(length)
    share = length - below
    return [(below, 1 - share), (below + 1, share)] if share else [(below, 1.0)]
