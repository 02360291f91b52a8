"""What each of the processes of `test_context` does: every layer and some models with rows cut among the processes, as
`context_cases` compares them. Rank 0 writes what came of it to N.json, N the processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from parallel.context_cases import ROWS, STEPS, clocks, difference, encoded, recomputed, spans, unscored
from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.core.part_config import PartConfig
from weft.laws.discovery import every_example, subject_of
from weft.parallel.context import Context
from weft.training.parallel import World

GROUPS = ("mixer", "feedforward")


def worker(folder: Path) -> None:
    """Compare everything and write it."""
    torch.set_num_threads(1)
    with World.here() as world:
        found = dict(compared(world.size))
        found |= {"recomputed": recomputed(), "unscored": unscored(), "clocks": clocks(Context()),
                  "encoded": encoded("whole", again=False), "encoded again": encoded("packed", again=True)}
        everyone: list[Any] = [None] * world.size
        dist.all_gather_object(everyone, found)
        if world.leads:
            worst = {name: max(one[name] for one in everyone) for name in found}
            (folder / f"{world.size}.json").write_text(json.dumps(worst), encoding="utf-8")


def compared(size: int) -> Iterator[tuple[str, float]]:
    """The difference of each case from one process."""
    context = Context()
    for name, config in cases(size):
        torch.manual_seed(0)
        subject = subject_of(config, name)
        assert subject is not None
        x = subject.inputs(ROWS, STEPS, torch.Generator().manual_seed(1))
        # Rows without padding or documents take other forms of operations; the first example of a part tells.
        both_ways = Trait.BIDIRECTIONAL in traits_of(subject.module)
        told = size == 2 and name.startswith("mixer") and (both_ways or name.endswith(".0"))
        kinds = ("ragged", "whole") if told else ("ragged",)
        for kind, span in spans(STEPS // 2).items():
            if kind in kinds:
                yield f"{name} {kind}", difference(subject, context, span, x)


def cases(size: int) -> Iterator[tuple[str, PartConfig]]:
    """Every example of every mixer and feed-forward for two processes, the first of each mixer for more."""
    for name, config in every_example():
        if config.group in GROUPS and (size == 2 or (config.group == "mixer" and name.endswith(".0"))):
            yield name, config
