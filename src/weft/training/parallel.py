"""Data-parallel training: several processes, started by `torchrun`, that share every batch.

Each rank takes its rows of the batch that one process would have (`weft.data.Batches.batch`) and computes the
gradients of its part of the same sum

    L = 1/N sum over all rows of (loss of each target),    N the targets of the whole step that count

so a rank with fewer targets weighs less, and the gradients are added, not averaged (`weft.training.exchange`). Weights,
optimiser and clipping are the same on every rank; rank 0 alone evaluates, writes files and prints.

What differs from one process: sums are rounded in another order; dropout and other random numbers are drawn separately
for each step and rank, so with them worlds of different sizes agree statistically only; and a model's own losses (load
balance of experts) are computed from each rank's rows and weighted by their targets, as accumulation does.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from weft.core.errors import FailedError, TrainingError, UnsupportedError
from weft.parallel.mesh import Mesh, MeshSettings
from weft.training.heartbeat import Heartbeat

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that torchrun sets."""
TIMEOUT = timedelta(days=30)
"""Ranks wait for rank 0 while it evaluates, however long that takes. A rank that dies closes its connection, which the
others notice at once; one that is stopped is noticed by its `Heartbeat`."""
REPORT_SECONDS = 2.0
"""How long a rank that failed after another one waits for that one to report its error."""
REPORTED, ANSWERED = "told", "answered"
LOST = re.compile("gloo|nccl|connection (was )?(closed|reset|refused)|broken pipe|socket|store", re.IGNORECASE)
"""In the text of errors of the connection, for which the backends raise plain RuntimeErrors."""
BESIDE = re.compile(r"^\[[^]]*\] ?|\.? This is typically .*$")
"""What gloo says besides the error: a line of its source, and guesses about the other process."""


class FailedElsewhere(FailedError):
    """This rank ends because of an error that another rank reports, so that it prints nothing itself."""

    def __init__(self, rank: int, exit_code: int) -> None:
        super().__init__("another rank has failed, and reports why.", where=f"rank {rank}")
        self.exit_code = exit_code


class World:
    """The processes that train one model together, as one of them has them. They are connected inside ``with``. Every
    method that says "all ranks" must be called by all ranks in the same order, and does nothing in a world of one.

    Leaving ``with`` by an error closes the connection, on which the other ranks fail too. One rank raises its own error
    and the others raise `FailedElsewhere`, so that it is printed once.

    Args:
        device: where this rank computes.
        rank: number of this process, from 0.

    Attributes:
        last: returns the last whole checkpoint of the run that trains, for messages; None: there is none.
    """

    def __init__(self, device: torch.device, *, rank: int = 0, size: int = 1) -> None:
        self.device, self.rank, self.size = device, rank, size
        self._store: Store | None = None
        self._lost = False
        self.timeout = TIMEOUT
        self.last: Callable[[], Path | None] = lambda: None
        self._beating = ExitStack()
        self.mesh = Mesh(MeshSettings(replicate=size), rank)

    @staticmethod
    def here(device: str = "cpu") -> World:
        """The world that torchrun set up, or of this process alone. On CUDA each rank has the GPU of its local number.
        Raises `UnsupportedError`: one GPU is named for several ranks."""
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
        """Whether this is rank 0, which evaluates, writes files and prints."""
        return self.rank == 0

    def arrange(self, settings: MeshSettings | None) -> Mesh:
        """Arrange the connected processes in a mesh, which `mesh` is from then on. All ranks must call it. Raises
        `ConfigError`: the mesh has another number of processes."""
        wanted = MeshSettings(replicate=self.size) if settings is None else settings
        if self.mesh.settings != wanted:
            self.mesh = Mesh.of(wanted, rank=self.rank, size=self.size, device=self.device.type)
        return self.mesh

    def __enter__(self) -> World:
        if self.size == 1:
            return self
        from torch.distributed.distributed_c10d import PrefixStore  # torch may be built without
        from torch.distributed.rendezvous import rendezvous

        shared, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
        # Each connection has keys of its own in the shared store: a process that connects a second time would read the
        # addresses of its first connection otherwise. All ranks connect equally often, so their counts agree.
        number = shared.add(f"weft.connections.{self.rank}", 1)
        store = PrefixStore(f"weft.{number}", shared)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=TIMEOUT)
        self._store = store
        apart = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,  # type: ignore[attr-defined]
                              wait_for_workers=False)
        self._beating.enter_context(Heartbeat(PrefixStore(f"weft.beats.{number}", apart), self.rank, self.size,
                                              lambda: self.last()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._beating.close()
        if self._store is None:
            return
        try:
            if isinstance(error, Exception) and not self._reports(self._store):
                raise FailedElsewhere(self.rank, getattr(error, "exit_code", 1)) from error
        finally:
            self._store = None
            dist.destroy_process_group()

    def _reports(self, store: Store) -> bool:
        """Whether this rank reports its error: the first one to ask does. Rank 0 asks at once about an error of its
        own; a rank that failed later, or because a connection broke, gives the cause `REPORT_SECONDS` to ask first."""
        with suppress(RuntimeError):  # the store is gone with the process that held it
            store.set(f"{ANSWERED}.{self.rank}", "1")
            deadline = time.monotonic() + (REPORT_SECONDS if not self.leads or self._lost else 0)
            while time.monotonic() < deadline and not store.check([REPORTED]):
                time.sleep(0.05)
            return int(store.add(REPORTED, 1)) == 1
        return True

    def rows(self, count: int) -> slice:
        """This rank's rows of ``count``; ranks that share rows have the same ones."""
        each, place = count // self.mesh.data_size, self.mesh.data_rank
        return slice(place * each, (place + 1) * each)

    def lead(self, work: Callable[[], Any]) -> Any:
        """Call ``work`` on rank 0 and return its result, which must be JSON data, on all ranks. If it fails, all do.
        Raises `TrainingError`: on the other ranks, when rank 0 failed."""
        if self.size == 1:
            return work()
        if not self.leads:
            return self._received()
        try:
            result = work()
        except BaseException:
            with suppress(TrainingError):
                self._send({"failed": True})
            raise
        self._send({"result": result})
        return result

    def total(self, *values: float) -> list[float]:
        """The sum over all ranks of each value, those that share every product counted once; exact for whole
        numbers."""
        if self.size == 1:
            return list(values)
        alike = self.mesh.size("tensor")
        return [value / alike for value in self._reduced(values, dist.ReduceOp.SUM)]

    def largest(self, value: int) -> int:
        """The largest value of all ranks."""
        return value if self.size == 1 else int(self._reduced([value], dist.ReduceOp.MAX)[0])

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Around a call that all ranks take part in. Raises `TrainingError`: the connection to another rank is lost."""
        try:
            yield
        except RuntimeError as error:
            raise self.lost(error) from error

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around computations in which all ranks take part, of which other errors than a lost connection are their own.
        Raises `TrainingError`: the connection to another rank is lost."""
        try:
            yield
        except RuntimeError as error:
            if not is_lost(error):
                raise
            raise self.lost(error) from error

    def lost(self, error: RuntimeError) -> TrainingError:
        """The error for a connection that is lost. It names the ranks that have ended without a word, as a killed
        process does: every rank that goes on, or that has an error to report, says so in the store within
        `REPORT_SECONDS`."""
        self._lost = True
        reason = BESIDE.sub("", str(error).strip().splitlines()[-1])
        silent = self._silent()
        which = f"rank {', '.join(map(str, silent))}" if silent else "another rank"
        ended = (f", which {'has' if len(silent) == 1 else 'have'} ended without a word, as a process that is killed "
                 "does") if silent else ""
        return TrainingError(f"the connection to {which} is lost{ended} ({reason}).", where=f"rank {self.rank}",
                             remedy="See the error of that rank or why it was killed, such as for memory, then go on "
                                    "with --resume.")

    def _silent(self) -> list[int]:
        """The ranks that do not answer; rank 0 alone where it held the store."""
        if self._store is None:
            return []
        try:
            self._store.set(f"{ANSWERED}.{self.rank}", "1")
            deadline, left = time.monotonic() + REPORT_SECONDS, list(range(self.size))
            while left and time.monotonic() < deadline:
                left = [rank for rank in left if not self._store.check([f"{ANSWERED}.{rank}"])]
                time.sleep(0.05)
            return left
        except RuntimeError:
            return [0]

    def _reduced(self, values: Sequence[float], how: Any) -> list[float]:
        summed = torch.tensor(values, dtype=torch.float64)
        with self.communicating():
            dist.all_reduce(summed, op=how)
        return [float(value) for value in summed]

    def _send(self, message: dict[str, Any]) -> None:
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        with self.communicating():
            dist.broadcast(torch.tensor([len(data)]), src=0)
            dist.broadcast(data, src=0)

    def _received(self) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        with self.communicating():
            dist.broadcast(size, src=0)
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(data, src=0)
        message = json.loads(data.numpy().tobytes())
        if "failed" in message:
            self._lost = True
            raise TrainingError("rank 0 has failed.", where=f"rank {self.rank}", remedy="See its error.")
        return message["result"]


def is_lost(error: RuntimeError) -> bool:
    """Whether an error is one of the connection to other ranks."""
    return isinstance(error, dist.DistError) or LOST.search(str(error)) is not None


def leads() -> bool:
    """Whether this process is rank 0 of those that torchrun started, or runs alone."""
    return _size() == 1 or os.environ["RANK"] == "0"


def _size() -> int:
    """Number of processes; 1 where torchrun's variables are not all set, as under a scheduler that uses some."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in VARIABLES) else 1
