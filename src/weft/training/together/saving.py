"""Checkpoints that all processes of a run write together, each what it holds, perhaps while training goes on.

A checkpoint is written in a draft beside its place. When every process has written its part, rank 0 renames the draft,
so that a checkpoint stands whole or not at all, whichever process is killed when. All processes must see the folder,
as on one machine or on a shared file system.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from weft.checkpoints.box_writer import BoxPlanner, BoxWriter
from weft.checkpoints.save import Describe
from weft.checkpoints.sharded import SHARDED, Boxes, TensorBox
from weft.core.errors import TrainingError
from weft.disk.atomic import free_bytes, replacing
from weft.disk.ownership import by_manifest, require_free
from weft.training.parallel import World, is_lost

ERRORS = (CheckpointException, OSError, SafetensorError, RuntimeError)
"""What writing raises: torch's own error, which holds those of all processes, or that of this one."""


class Copies(AsyncStager):
    """Copies boxes into main memory, after which training may change the tensors. The memory is used again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    @property
    def should_synchronize_after_execute(self) -> bool:
        """A copy is complete when `stage` returns."""
        return False

    def stage(self, state_dict: Mapping[str, Boxes]) -> dict[str, Boxes]:
        return {name: boxes._replace(held=tuple(self._copied(name, box) for box in boxes.held))
                for name, boxes in state_dict.items()}

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Free the memory."""
        self._kept.clear()

    def _copied(self, name: str, box: TensorBox) -> TensorBox:
        key = (name, box.offsets)
        kept = self._kept.get(key)
        if kept is None or kept.shape != box.tensor.shape or kept.dtype != box.tensor.dtype:
            kept = self._kept[key] = box.tensor.detach().to("cpu", copy=True).contiguous()
        else:
            kept.copy_(box.tensor.detach())
        return box._replace(tensor=kept)


class ShardedSaver:
    """Writes the checkpoints of one run, one after another.

    Args:
        world: the processes, which call every method alike.
        background: whether `write` returns as soon as the tensors have been copied.
    """

    def __init__(self, world: World, *, background: bool) -> None:
        self._world, self._background = world, background
        self._group = None if world.size == 1 else dist.new_group(backend="gloo", timeout=world.timeout)
        self._copies, self._thread = Copies(), ThreadPoolExecutor(1)
        self._writing: Future[Any] | None = None
        self._path: Path | None = None
        self._stack = ExitStack()

    def write(self, path: Path, boxes: Mapping[str, Boxes], describe: Describe) -> None:
        """Begin a checkpoint, after the one before is complete, and complete it unless this writes in the background.

        Raises:
            OccupiedError: something that is no checkpoint of Weft is in its place.
            TrainingError: a file cannot be written, here or by another process.
        """
        self.complete()
        self._path = path
        draft = Path(self._world.lead(lambda: str(self._draft(path, describe))))
        try:
            self._writing = self._begun(boxes, BoxWriter(draft / SHARDED, self._world.rank))
        except ERRORS as error:
            raise self._failed(error) from error
        if not self._background:
            self.complete()

    def _begun(self, boxes: Mapping[str, Boxes], writer: BoxWriter) -> Future[Any]:
        """Write this process's part, now or in the background."""
        planner = BoxPlanner()
        if self._background and self._world.size > 1:
            begun = async_save(dict(boxes), storage_writer=writer, planner=planner, process_group=self._group,
                               async_stager=self._copies)
            assert isinstance(begun, Future), "of a stager that has copied when it returns"
            return begun
        if self._background:
            return self._thread.submit(write_alone, self._copies.stage(boxes), writer, planner)
        if self._world.size == 1:
            write_alone(boxes, writer, planner)
        else:
            save(dict(boxes), storage_writer=writer, planner=planner, process_group=self._group)
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    @property
    def ready(self) -> bool:
        """Whether a checkpoint is written in the background, and this process's part of it is there; on rank 0, all
        parts are."""
        return self._writing is not None and self._writing.done()

    def complete(self) -> Path | None:
        """Wait for the checkpoint that is being written, and give it its name; return its path, None without one.
        Raises `TrainingError`: it cannot be written."""
        if self._writing is None:
            return None
        try:
            self._writing.result()
        except ERRORS as error:
            raise self._failed(error) from error
        finally:
            self._writing = None
        return self._publish()

    def close(self) -> None:
        """Give up a checkpoint that is not complete, and what it has written."""
        if self._writing is not None:
            self._writing.exception()  # its thread may still be writing into the draft
        self._abandon(None)
        self._copies.close()
        self._thread.shutdown()

    def _draft(self, path: Path, describe: Describe) -> Path:
        require_free(path, proof=by_manifest, replace=True)
        self._stack = ExitStack()
        draft = self._stack.enter_context(replacing(path, proof=by_manifest))
        (draft / SHARDED).mkdir()
        describe(draft)
        return draft

    def _publish(self) -> Path:
        """Complete the draft on rank 0, after every process has written its part."""
        path = self._path
        assert path is not None, "a checkpoint is being written"

        self._world.lead(self._stack.close)  # which renames the draft
        return path

    def _failed(self, error: BaseException) -> TrainingError:
        self._abandon(error)
        if isinstance(error, RuntimeError) and is_lost(error):
            return self._world.lost(error)
        path, reason, ranks = self._path, error, [self._world.rank]
        assert path is not None, "a checkpoint is being written"
        if isinstance(error, CheckpointException) and error.failures:
            ranks = sorted(error.failures)
            reason = error.failures[ranks[0]][0]
        return TrainingError(f"rank {', '.join(map(str, ranks))} cannot write the checkpoint ({reason}); "
                             f"{free_bytes(path):,} bytes are free there.", where=str(path),
                             remedy="Free space, then go on with --resume.")

    def _abandon(self, error: BaseException | None) -> None:
        """Delete the draft."""
        stack, self._stack = self._stack, ExitStack()
        reason = error if error is not None else TrainingError("the run ends.", where="checkpoint")
        stack.__exit__(type(reason), reason, None)


def write_alone(boxes: Mapping[str, Boxes], writer: BoxWriter, planner: BoxPlanner) -> None:
    """Write all boxes of one process, as `torch.distributed.checkpoint.save` does with those of many."""
    planner.set_up_planner(dict(boxes), None, is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    writer.finish(metadata, [writer.write_data(planner.finish_plan(plans[0]), planner).wait()])
