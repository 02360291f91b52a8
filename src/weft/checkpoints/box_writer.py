"""Writing the boxes of many processes: what `torch.distributed.checkpoint` plans and calls, and the files it leads to
(`weft.checkpoints.sharded`). It takes a second to import, so only runs that write such checkpoints do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from weft.checkpoints.sharded import INDEX_FILE, Boxes
from weft.checkpoints.tensors import write_tensors
from weft.disk.atomic import flush
from weft.disk.manifest import write_manifest


class BoxPlanner(DefaultSavePlanner):
    """Plans the boxes of a mapping of names to `Boxes`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        items = list[WriteItem]()
        for name, boxes in self.state_dict.items():
            for box in boxes.held:
                offsets = torch.Size(box.offsets)
                data = TensorWriteData(ChunkStorageMetadata(offsets, box.tensor.shape), TensorProperties(boxes.dtype),
                                       torch.Size(boxes.shape))
                items.append(WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        index = write_item.index
        boxes: Boxes = self.state_dict[index.fqn]
        return next(box.tensor for box in boxes.held if box.offsets == tuple(index.offset or ()))


class BoxWriter(StorageWriter):
    """Writes the boxes of each process into a file of its own, and at the end the index and the manifest.

    Args:
        folder: where; it exists, in a checkpoint that is complete but for both and its tensors.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._file = folder, f"rank-{rank:05d}.safetensors"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one checkpoint to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The folder stands."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        keyed = {f"{item.index.fqn}@{','.join(map(str, item.index.offset or ()))}": item for item in plan.items}
        data = {key: planner.resolve_data(item) for key, item in keyed.items()}
        boxes = {key: box for key, box in data.items() if isinstance(box, Tensor)}
        if boxes:
            write_tensors(self._folder / self._file, boxes)
            flush(self._folder / self._file)  # here, where it may be in the background
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, {"file": self._file, "key": key, "shape": list(boxes[key].shape)})
                         for key, item in keyed.items()])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        content: dict[str, Any] = {name: {"dtype": str(found.properties.dtype).removeprefix("torch."),
                                          "shape": list(found.size), "boxes": []}
                                   for name, found in metadata.state_dict_metadata.items()
                                   if isinstance(found, TensorStorageMetadata)}
        for result in (each for of_rank in results for each in of_rank):
            content[result.index.fqn]["boxes"].append({"offsets": list(result.index.offset or ()),
                                                       **result.storage_data})
        (self._folder / INDEX_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")
        write_manifest(self._folder.parent)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """None is given: the folder is the writer's."""
        return checkpoint_id is None

    def storage_meta(self) -> StorageMeta | None:
        return None
