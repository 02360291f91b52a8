"""Courses of training, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from parallel.table.subjects import fresh_model, text
from weft.parallel.layout import Layout, boxes
from weft.training import RunConfig
from weft.training.parallel import World
from weft.training.trainer import Trainer


class Step(NamedTuple):
    """The loss of a step, in nats per token, and the gradients of all parameters, whole, by name."""

    loss: float
    gradients: dict[str, Tensor]


class Cell(NamedTuple):
    """How far a course is from that of one process.

    Attributes:
        loss: the largest relative difference of the loss of a step.
        gradient: the largest relative difference, in L2 norm, of all gradients of a step together.
        signed: the mean relative difference of the loss with its sign, by which a drift to one side shows.
    """

    loss: float
    gradient: float
    signed: float


def trained(config: RunConfig, *, world: World | None = None, steps: int) -> list[Step]:
    """The course of a run as `weft train` makes it."""
    trainer = Trainer(config, fresh_model(config), text(steps), steps=steps, device="cpu", world=world)
    return [advanced(trainer) for _ in range(steps)]


def advanced(trainer: Trainer) -> Step:
    """The next step of a trainer."""
    sums = trainer.advance().sums
    return Step(sums.nats / sums.tokens, whole_gradients(trainer))


def whole_gradients(trainer: Any) -> dict[str, Tensor]:
    """The gradients of all parameters, as one process has them."""
    found = {}
    for name, weight in trainer.model.named_parameters():
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        found[name] = _whole(grad, trainer.held.layout(name, weight), trainer.world)
    return found


def _whole(held: Tensor, layout: Layout, world: World) -> Tensor:
    """A tensor of which this process may hold a part, whole: every entry is that of all who hold it."""
    if world.size == 1:
        return held.detach().clone()
    entries = torch.zeros(2, *layout.shape, dtype=held.dtype)
    for box in boxes(held, layout).held:
        place = tuple(slice(start, start + size) for start, size in zip(box.offsets, box.tensor.shape, strict=True))
        entries[(slice(None), *place)] = torch.stack([box.tensor, torch.ones_like(box.tensor)])
    dist.all_reduce(entries)
    return entries[0] / entries[1]


def apart(course: Sequence[Step], alone: Sequence[Step]) -> Cell:
    """How far a course is from another, of the same number of steps and the same parameters."""
    losses = [(a.loss - b.loss) / abs(b.loss) for a, b in zip(course, alone, strict=True)]
    gradients = [_relative(a.gradients, b.gradients) for a, b in zip(course, alone, strict=True)]
    return Cell(max(map(abs, losses)), max(gradients), sum(losses) / len(losses))


def _relative(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert found.keys() == wanted.keys(), f"parameters of other names: {found.keys() ^ wanted.keys()}"
    square = sum(float((found[name] - wanted[name]).abs().square().sum()) for name in wanted)
    size = sum(float(each.abs().square().sum()) for each in wanted.values())
    return float((square / size) ** 0.5)



