"""What each of the processes of `test_mixture` does: train on a mixture, and write the batches that it computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from training.tiny_runs import LSTM
from weft.data import Batch
from weft.data.batches import MadeOfText
from weft.training import parse_run
from weft.training.material import prepare
from weft.training.parallel import World
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

STEPS, ROWS = 3, 8
MESHES: dict[int, tuple[dict[str, int] | None, ...]] = {1: (None,), 2: (None,), 4: (None, {"shard": 2, "tensor": 2})}
"""The meshes of so many processes; None: all are replicas."""
MLP = {"kind": "decoder", "d_model": 12, "context": 8, "blocks": [{"kind": "pre", "layers": ["mlp"]}]}


@final
class Recorded:
    """Batches that keep what a trainer takes from them."""

    def __init__(self, batches: MadeOfText[Any]) -> None:
        self._batches, self.rows, self.taken = batches, batches.rows, list[Batch]()

    def batch(self, step: int, *, rank: int, world: int) -> Any:
        self.taken.append(self._batches.text.batch(step, rank=rank, world=world))
        return self._batches.batch(step, rank=rank, world=world)


def worker(folder: Path) -> None:
    torch.set_num_threads(1)
    with World.here() as world:
        for mesh in MESHES[world.size]:
            taken = batches(folder, world, mesh)
            columns: dict[str, np.ndarray] = {
                name: np.stack([getattr(batch, name) for batch in taken])
                for name in ("inputs", "targets", "scored", "places", "source", "epoch")}
            place = np.array([world.mesh.data_rank, world.mesh.data_size])
            np.savez(folder / f"{world.size}-{mesh is None}-{world.rank}.npz", place=place, **columns)


def batches(folder: Path, world: World, mesh: dict[str, int] | None) -> list[Batch]:
    """What the steps of a run compute on this process."""
    sources: dict[str, Any] = {name: {"path": str(folder / f"{name}.txt"), "weight": weight}
                               for name, weight in (("a", 3), ("b", 1), ("c", 2))}
    config = parse_run({"model": LSTM if mesh is None else MLP, "data": {"sources": sources}, "training": {
        "steps": STEPS, "batch_size": ROWS, "accumulation": 2, "mesh": mesh, "compute": {"matmul": "default"}}})
    trainer = Trainer(config, build_model(config), prepare(config).train, steps=STEPS, device="cpu", world=world)
    assert isinstance(trainer.batches, MadeOfText)
    recorded = Recorded(trainer.batches)
    trainer.batches = recorded  # type: ignore[assignment]
    for _ in range(STEPS):
        trainer.advance()
    return recorded.taken
