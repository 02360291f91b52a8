"""The norm of all gradients of a model of which each process has parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.parallel.layout import Layout, as_sharded, local
from weft.parallel.mesh import Mesh


def global_norm(parameters: Iterable[tuple[str, nn.Parameter]], layouts: Mapping[str, Layout], mesh: Mesh) -> float:
    """The L2 norm of the gradients of the whole model, each entry counted once. All processes must call it.

    Args:
        parameters: with their names, as this process has them, after their gradients have been added.
        layouts: of those that tensor parallelism divides.
        mesh: of the run.
    """
    total = torch.zeros((), dtype=torch.float64)
    for name, parameter in parameters:
        if parameter.grad is not None:
            divided = (mesh.size("tensor") if name in layouts else 1) * (
                1 if as_sharded(parameter) is None else mesh.size("shard"))
            holders = mesh.settings.processes // divided  # processes that hold each of its entries
            total += float(torch.linalg.vector_norm(local(parameter.grad))) ** 2 / holders
    if mesh.devices is not None:
        dist.all_reduce(total)
    return float(total.sqrt())


@torch.no_grad()
def clip(parameters: Iterable[Tensor], norm: float, limit: float | None) -> None:
    """Scale gradients of this norm so that it is at most ``limit``, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
    for parameter in parameters if factor < 1 else ():
        if parameter.grad is not None:
            local(parameter.grad).mul_(factor)
