"""What `test_kept_memory` runs in processes of its own: each prints the pages that large tensors have fetched."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from training.tiny_runs import LSTM, tiny_run
from weft.training import train
from weft.training.kept_memory import keep_freed_memory
from weft.training.material import prepare
from weft.training.run_training import build_model
from weft.training.trainer import Trainer


def faults() -> int:
    """Pages that are fetched while such a tensor is made five times, after some others, which a heap that keeps them
    may have to grow for."""
    for _ in range(12):
        torch.ones(1 << 24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def a_trainer(folder: Path) -> None:
    found = [faults()]
    config = tiny_run(folder, LSTM, steps=1)
    examples = prepare(config).train
    Trainer(config, build_model(config), examples, steps=1, device="cpu")
    print(*found, faults())


def a_run(folder: Path) -> None:
    train(tiny_run(folder, LSTM, steps=1), folder / "run")
    resident = [int(Path("/proc/self/statm").read_text().split()[1])]
    torch.ones(1 << 24)
    print(faults(), int(Path("/proc/self/statm").read_text().split()[1]) - resident[0])


def kept() -> None:
    keep_freed_memory()
    print(faults())
