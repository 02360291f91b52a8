"""The device mesh: the processes of a run as a grid of four named axes.

    replicate   copies of the model; each copy takes its own rows of a batch
    shard       processes that share one copy: each stores a part of every parameter, and takes its own rows
    context     processes that take pieces of the same rows
    tensor      processes that share every matrix product of the same rows

`replicate` times `shard` processes read different rows (data parallelism; with both above 1, hybrid sharding); those
that differ in `context` or `tensor` alone read the same ones. The axis that is named last communicates most, so
neighbouring ranks, which share a machine, differ in it first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, get_args

import torch.distributed as dist
from pydantic import Field

from weft.core.errors import ConfigError
from weft.core.part_config import Settings

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Axis: TypeAlias = Literal["replicate", "shard", "context", "tensor"]
AXES: tuple[Axis, ...] = get_args(Axis)
"""In the order of the grid, outermost first."""
PLACE = "training.mesh"


class MeshSettings(Settings):
    """Number of processes along each axis of the device mesh. The product is the number of processes of the run.

    Attributes:
        replicate: copies of the model; gradients are added over them.
        shard: processes that store one copy in parts (FSDP2).
        tensor: processes that split heads, channels and the vocabulary of one copy.
        context: processes that split the tokens of a row.
    """

    replicate: int = Field(default=1, gt=0)
    shard: int = Field(default=1, gt=0)
    tensor: int = Field(default=1, gt=0)
    context: int = Field(default=1, gt=0)

    def size(self, axis: Axis) -> int:
        """Processes along an axis."""
        return {"replicate": self.replicate, "shard": self.shard, "context": self.context, "tensor": self.tensor}[axis]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Processes along each of `AXES`."""
        return tuple(self.size(axis) for axis in AXES)

    @property
    def processes(self) -> int:
        """Processes in all."""
        return math.prod(self.sizes)

    def describe(self) -> str:
        """The axes with more than one process, in words."""
        return " x ".join(f"{axis} {self.size(axis)}" for axis in AXES if self.size(axis) > 1) or "one process"


def require_world(settings: MeshSettings, size: int) -> None:
    """Check that as many processes were started as the mesh has. Raises `ConfigError`: more or fewer; the message names
    a remedy."""
    if settings.processes != size:
        others = settings.processes // settings.replicate
        fits = (f"Set replicate to {size // others}, or start {settings.processes}." if size % others == 0 else
                f"Start {settings.processes} (torchrun --nproc-per-node), or choose sizes whose product is {size}.")
        raise ConfigError([f"{PLACE}: a mesh of {settings.describe()} has {settings.processes} processes, and {size} "
                           f"{'was' if size == 1 else 'were'} started. {fits}"])


@dataclass(frozen=True, eq=False)
class Mesh:
    """The mesh as one of its processes has it.

    Attributes:
        rank: of this process in the run.
        devices: torch's device mesh, with the four axes by name; None where all processes are replicas.
    """

    settings: MeshSettings
    rank: int = 0
    devices: DeviceMesh | None = None

    @classmethod
    def of(cls, settings: MeshSettings | None, *, rank: int, size: int, device: str = "cpu") -> Self:
        """Arrange the connected processes; all must call it. Without settings they are all replicas.

        Args:
            size: processes of the run, which are connected where it is above 1 (`weft.training.parallel.World`).
            device: kind of device that they compute on.

        Raises:
            ConfigError: the mesh has another number of processes.
        """
        chosen = MeshSettings(replicate=size) if settings is None else settings
        require_world(chosen, size)
        if chosen.processes == chosen.replicate:
            return cls(chosen, rank)
        from torch.distributed.device_mesh import init_device_mesh

        return cls(chosen, rank, init_device_mesh(device, chosen.sizes, mesh_dim_names=AXES))

    def size(self, axis: Axis) -> int:
        """Processes along an axis."""
        return self.settings.size(axis)

    def place(self, axis: Axis) -> int:
        """This process's index along an axis, from 0."""
        inner = math.prod(self.settings.sizes[AXES.index(axis) + 1:])
        return self.rank // inner % self.size(axis)

    def group(self, axis: Axis) -> dist.ProcessGroup | None:
        """The processes that differ from this one in the axis alone, in order; None where there is only this one."""
        if self.size(axis) == 1:
            return None
        return dist.group.WORLD if self.devices is None else self.devices.get_group(axis)

    def along(self, *axes: Axis) -> DeviceMesh:
        """The part of torch's mesh with these axes that this process is in."""
        assert self.devices is not None, "the processes are not all replicas"
        part: DeviceMesh = self.devices[axes[0] if len(axes) == 1 else axes]
        return part

    @property
    def data_rank(self) -> int:
        """Which rows of a batch this process takes: its number among those that take different ones."""
        return self.place("replicate") * self.size("shard") + self.place("shard")

    @property
    def data_size(self) -> int:
        """Processes that take different rows."""
        return self.size("replicate") * self.size("shard")

    @property
    def splits(self) -> bool:
        """Whether a process holds only a part of the model, or computes only a part of a row."""
        return self.settings.processes > self.size("replicate")
