"""How a process holds the model of a run: all of it, or the part that its place in the device mesh gives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from weft.core.errors import ConfigError
from weft.core.model import Model
from weft.parallel.layout import Layout, clip, global_norm
from weft.parallel.mesh import PLACE, Axis
from weft.parallel.tensor import divide, plan_of
from weft.training.config import RunConfig
from weft.training.exchange import sum_gradients
from weft.training.gradient import Forward
from weft.training.parallel import World
from weft.training.precision import Precision

if TYPE_CHECKING:
    from weft.parallel.fsdp import Sharded

R = TypeVar("R")
ENTRYWISE = frozenset({"adamw", "sgd"})
"""Optimisers that treat every entry of a parameter alike and by itself, so that parts move as the whole does."""
WHOLE_MATRICES = frozenset({"muon", "adafactor_unfactored"})
"""Those that need the whole of a parameter and read it from the processes that shard it."""


@dataclass(frozen=True)
class LocalModel:
    """A model in training, as this process has it.

    Attributes:
        precision: the model that is updated and the one that computes.
        layouts: of the parameters that tensor parallelism divides, by name.
        summed: names of parameters whose gradients the axis ``tensor`` adds.
    """

    precision: Precision | Sharded
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    summed: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether this process has all of the model."""
        return isinstance(self.precision, Precision) and not self.layouts

    def enter(self, work: Callable[..., R], *arguments: Any) -> R:
        """Call ``work``, which computes with the model; all processes that share it must."""
        if isinstance(self.precision, Precision):
            return work(*arguments)
        return self.precision.enter(work, *arguments)

    def entering(self, forward: Forward) -> Forward:
        """``forward`` by way of `enter`."""
        return forward if isinstance(self.precision, Precision) else lambda given, state: self.enter(
            forward, given, state)

    def finish_gradients(self, world: World, limit: float | None) -> float:
        """Add the gradients over processes, scale them to a norm of at most ``limit``, and return their norm before."""
        model = self.precision.model
        sum_gradients(world, model, self.summed)
        if self.whole:
            return float(nn.utils.clip_grad_norm_(model.parameters(), math.inf if limit is None else limit))
        with world.communicating():
            norm = global_norm(model.named_parameters(), self.layouts, world.mesh)
        clip(model.parameters(), norm, limit)
        return norm

    def stored(self, tensor: Tensor) -> Tensor:
        """The value of a parameter or buffer in checkpoints: of a buffer that computes in bfloat16, its own dtype."""
        wide = {} if isinstance(self.precision, Precision) else self.precision.buffers()
        return wide.get(id(tensor), tensor)

    def layout(self, name: str, tensor: Tensor) -> Layout:
        """Where what this process has of a parameter, or of a tensor of the optimiser of the same shape, lies."""
        return self.layouts[name] if name in self.layouts else Layout.whole(tensor.shape)


def hold(model: Model, world: World, dtype: torch.dtype, *, one_group: bool) -> LocalModel:
    """The model as this process's place in the mesh has it; it is changed in place.

    Args:
        model: whole, with the same weights on every process.
        world: its `mesh` says what this process holds.
        dtype: what to compute in.
        one_group: see `Sharded`.

    Raises:
        ConfigError: heads or channels that do not divide, see `weft.parallel.tensor.plan_of`.
    """
    mesh, layouts, summed = world.mesh, dict[str, Layout](), frozenset[str]()
    if mesh.size("tensor") > 1:
        divided = divide(model, mesh)
        layouts, summed = divided.layouts, divided.summed
    if mesh.size("shard") > 1:
        from weft.parallel.fsdp import Sharded  # FSDP2 takes a second to import

        return LocalModel(Sharded(model, mesh, dtype, one_group=one_group), layouts, summed)
    return LocalModel(Precision(model, dtype), layouts, summed)


def holding_problems(config: RunConfig, model: Model) -> list[str]:
    """The settings of the run that do not go together with its mesh; each names the field concerned."""
    training, mesh = config.training, config.training.mesh
    if mesh is None or mesh.shard == mesh.tensor == 1:
        return []
    if mesh.context > 1:
        return [f"{PLACE}.context: {mesh.context}, and the tokens of a row cannot be divided yet. Leave it out."]
    axis: Axis = "tensor" if mesh.tensor > 1 else "shard"
    given, kind, found = f"{axis} {mesh.size(axis)}", training.optimizer.kind, []
    if kind not in ENTRYWISE and not (mesh.tensor == 1 and kind in WHOLE_MATRICES):
        found.append(f"training.optimizer.kind: {kind} does not move every entry by itself, and {PLACE} ({given}) "
                     "gives each process a part of a matrix. Use adamw or sgd, or replicate the model.")
    if training.unfreeze is not None:
        found.append(f"training.unfreeze: with {PLACE} ({given}), which shares the parameters that train. Leave out "
                     "one of them.")
    if training.carry_state and mesh.tensor > 1:
        found.append(f"training.carry_state: with {PLACE} ({given}), each process would carry the state of its own "
                     "heads. Leave out one of them.")
    if mesh.tensor > 1:
        try:
            plan_of(model, mesh.tensor)
        except ConfigError as error:
            found += error.problems
    return found
