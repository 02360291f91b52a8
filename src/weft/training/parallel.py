"""Data-parallel training: several processes, started by `torchrun`, that share every batch.

Each rank takes its rows of the batch that one process would have (`weft.data.Batches.batch`) and computes the
gradients of its part of the same sum

    L = 1/N sum over all rows of (loss of each target),    N the targets of the whole step that count

so a rank with fewer targets weighs less, and the gradients are added, not averaged. Weights, optimiser and clipping are
the same on every rank; rank 0 alone evaluates, writes and tells.

torch's DistributedDataParallel is not used. It means the gradients over ranks, it works on the module that computes,
which for bfloat16 is a copy (see `weft.training.precision`), so that it would add in bfloat16, and its hooks cut a
compiled pass into pieces. Adding flat buckets of the float32 gradients once, after the last backward pass of a step,
leaves the pass untouched; the price is that communication does not overlap with it.

What differs from one process: sums are rounded in another order; dropout and other random numbers are drawn anew for
each step and rank, so with them worlds of different sizes agree statistically only; and a model's own losses (load
balance of experts) are computed from each rank's rows and weighed by their targets, as accumulation does.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.core.errors import ConfigError, DataError, FailedError, TrainingError, UnsupportedError
from weft.core.layer import traits_of
from weft.core.model import Model
from weft.core.traits import Trait
from weft.training.config import RunConfig

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets."""
WAIT = timedelta(days=30)
"""Ranks wait for rank 0 while it evaluates, however long that takes. One that dies is noticed by its connection."""
MOMENT = 2.0
"""Seconds in which the rank that failed first says so."""
TOLD = "told"
BUCKET = 2**24
"""Entries that are added in one call, so that the flat copy of the gradients stays small."""


class ToldElsewhere(FailedError):
    """This rank ends because of an error that another rank tells of, so there is nothing left to say."""

    def __init__(self, rank: int, exit_code: int) -> None:
        super().__init__("another rank has failed, and tells why.", where=f"rank {rank}")
        self.exit_code = exit_code


@final
class World:
    """The processes that train one model together, seen from one of them. Connected inside ``with``; every method that
    says "all ranks" is to be called by all, in the same order, and is nothing in a world of one.

    Leaving ``with`` by an error ends the connection, on which the others fail too. One rank tells of the error, and the
    others raise `ToldElsewhere`.

    Args:
        device: where this rank computes.
        rank: of this process, from 0.
        size: number of processes.
    """

    def __init__(self, device: torch.device, *, rank: int = 0, size: int = 1) -> None:
        self.device, self.rank, self.size = device, rank, size
        self._store: Store | None = None
        self._lost = False

    @staticmethod
    def here(device: str = "cpu") -> World:
        """The world that torchrun set up, or of this process alone. On CUDA each rank has the GPU of its local number.

        Raises:
            UnsupportedError: one GPU is named for several ranks.
        """
        size = _size()
        if size == 1:
            return World(torch.device(device))
        if device.startswith("cuda:"):
            raise UnsupportedError(f"{device!r} for {size} ranks, each of which needs a GPU of its own.",
                                   where="device", remedy="Give cuda, and CUDA_VISIBLE_DEVICES to choose among GPUs.")
        place = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
        return World(torch.device(place), rank=int(os.environ["RANK"]), size=size)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates, writes and tells."""
        return self.rank == 0

    def __enter__(self) -> World:
        if self.size == 1:
            return self
        from torch.distributed.distributed_c10d import PrefixStore  # torch may be built without
        from torch.distributed.rendezvous import rendezvous

        shared, _, _ = next(rendezvous("env://", timeout=WAIT))
        # Every rank counts its own connections, so that one after another in a process do not find stale addresses.
        store = PrefixStore(f"weft.{shared.add(f'weft.connections.{self.rank}', 1)}", shared)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=WAIT)
        self._store = store
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._store is None:
            return
        try:
            if isinstance(error, Exception) and not self._tells(self._store):
                raise ToldElsewhere(self.rank, getattr(error, "exit_code", 1)) from error
        finally:
            self._store = None
            dist.destroy_process_group()

    def _tells(self, store: Store) -> bool:
        """Whether this rank is the one to tell of its error: rank 0 of its own; otherwise the first, unless rank 0 or
        the one that failed first does within a moment."""
        with suppress(RuntimeError):  # the store is gone with the process that held it
            patience = time.monotonic() + (MOMENT if not self.leads or self._lost else 0)
            while time.monotonic() < patience and not store.check([TOLD]):
                time.sleep(0.05)
            return int(store.add(TOLD, 1)) == 1
        return True

    def rows(self, count: int) -> slice:
        """This rank's rows of ``count``."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def lead(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` on rank 0, and give what it returns, which must be JSON data, to all ranks. If it fails, all do.

        Raises:
            TrainingError: on the other ranks, when rank 0 failed.
        """
        if self.size == 1:
            return work()
        if not self.leads:
            return self._told()
        try:
            result = work()
        except BaseException:
            with suppress(TrainingError):
                self._tell({"failed": True})
            raise
        self._tell({"result": result})
        return result

    def total(self, *values: float) -> list[float]:
        """The sum over all ranks of each value; exact for whole numbers."""
        return list(values) if self.size == 1 else self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, value: int) -> int:
        """The largest over all ranks."""
        return value if self.size == 1 else int(self._reduced([value], dist.ReduceOp.MAX)[0])

    @torch.no_grad()
    def add_gradients(self, model: nn.Module) -> None:
        """Give every parameter the sum of its gradients over all ranks; one that has none on any keeps none."""
        if self.size == 1:
            return
        for bucket in _buckets(model):
            present = [0.0 if weight.grad is None else 1.0 for weight in bucket]
            pieces = [_flat(torch.zeros_like(weight) if weight.grad is None else weight.grad) for weight in bucket]
            flat = torch.cat([*pieces, pieces[0].new_tensor(present)])
            with self._meeting():
                dist.all_reduce(flat)
            *sums, present_sums = flat.split([*(piece.numel() for piece in pieces), len(bucket)])
            for weight, piece, ranks in zip(bucket, sums, present_sums.tolist(), strict=True):
                weight.grad = _shaped(piece, weight) if ranks else None

    @torch.no_grad()
    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors of all ranks by those of rank 0."""
        for tensor in tensors if self.size > 1 else ():
            whole = tensor.detach().contiguous()
            with self._meeting():
                dist.broadcast(_bytes(whole), src=0)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)

    def spread_named(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The named tensors of rank 0, on the CPU of all ranks; those of the other ranks do not matter."""
        if self.size == 1:
            return dict(tensors)
        shapes = self.lead(lambda: [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                                    for name, tensor in tensors.items()])
        found = {name: tensors[name].cpu().contiguous() if self.leads else
                 torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in shapes}
        self.spread(list(found.values()))
        return found

    def gather_rows(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows of all ranks, in order, of tensors whose first dimension is the batch."""
        if self.size == 1:
            return dict(tensors)
        found = {}
        for name, tensor in tensors.items():
            parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
            with self._meeting():
                dist.all_gather([_bytes(part) for part in parts], _bytes(tensor.contiguous()))
            found[name] = torch.cat(parts)
        return found

    def _reduced(self, values: Sequence[float], how: Any) -> list[float]:
        summed = torch.tensor(values, dtype=torch.float64)
        with self._meeting():
            dist.all_reduce(summed, op=how)
        return [float(value) for value in summed]

    def _tell(self, message: dict[str, Any]) -> None:
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        with self._meeting():
            dist.broadcast(torch.tensor([len(data)]), src=0)
            dist.broadcast(data, src=0)

    def _told(self) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with self._meeting():
            dist.broadcast(size, src=0)
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, src=0)
        message = json.loads(data.numpy().tobytes())
        if "failed" in message:
            self._lost = True
            raise TrainingError("rank 0 has failed.", where=f"rank {self.rank}", remedy="See what it tells.")
        return message["result"]

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Around what needs all ranks."""
        try:
            yield
        except RuntimeError as error:
            self._lost = True
            reason = str(error).strip().splitlines()[-1]
            raise TrainingError(f"the connection to another rank is lost ({reason}).", where=f"rank {self.rank}",
                                remedy="See what that rank told, then go on with --resume.") from error


def leads() -> bool:
    """Whether this process is rank 0 of what torchrun started, or alone."""
    return _size() == 1 or os.environ["RANK"] == "0"


def require_divisible(config: RunConfig, size: int) -> None:
    """Check that every rank has as many rows.

    Raises:
        ConfigError: it has not.
    """
    rows = config.training.batch_size
    if rows % size:
        nearest = max(1, round(rows / size)) * size
        raise ConfigError([f"training.batch_size: {rows} rows do not divide among {size} ranks. Choose a multiple of "
                           f"{size}, such as {nearest}, or another --nproc-per-node."])


def require_parallel(model: Model, size: int) -> None:
    """Check that several ranks can train the model.

    Raises:
        ConfigError: it is fitted by counting, or normalises over the whole batch.
    """
    traits = traits_of(model) if size > 1 else frozenset()
    if Trait.NOT_DIFFERENTIABLE in traits:
        raise ConfigError([f"model: a model of kind {model.config.kind!r} is fitted by counting, which one process "
                           f"does, and {size} were started. Start it without torchrun."])
    if Trait.BATCH_STATISTICS in traits:
        raise ConfigError([f"model: batch normalisation needs the statistics of the whole batch, of which each of "
                           f"{size} ranks sees a part. Use another norm, or start it without torchrun."])


def require_same_text(world: World, digest: str) -> None:
    """Check that all ranks have the text and tokenizer of rank 0.

    Raises:
        DataError: this one has not.
    """
    if world.lead(lambda: digest) != digest:
        raise DataError("the text or the tokenizer is not that of rank 0.", where=f"rank {world.rank}",
                        remedy="Give every machine the same files, and the same version of Python for the embedded "
                        "text.")


def _size() -> int:
    """Number of processes; 1 where not all that torchrun sets is set, as under a scheduler that uses some of it."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in VARIABLES) else 1


def _buckets(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """The trained parameters in order, in pieces of one dtype and limited size."""
    bucket: list[nn.Parameter] = []
    for weight in (weight for weight in model.parameters() if weight.requires_grad):
        if bucket and (weight.dtype != bucket[0].dtype or sum(map(torch.numel, [*bucket, weight])) > BUCKET):
            yield bucket
            bucket = []
        bucket.append(weight)
    if bucket:
        yield bucket


def _flat(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor.contiguous()) if tensor.is_complex() else tensor).reshape(-1)


def _shaped(flat: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(flat.view(*like.shape, 2)) if like.is_complex() else flat.view(like.shape)


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, which the backends can send whatever its dtype."""
    return tensor.reshape(-1).view(torch.uint8)
