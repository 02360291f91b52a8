"""From batches to gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.core.model import Model, ModelState
from weft.tasks import Scored, Task
from weft.training.parallel import World

Forward: TypeAlias = Callable[[Any, ModelState | None], Scored]
"""The task's loss under one model: a batch as tensors, and the state before it."""


class Sums(NamedTuple):
    """Sums over the batches of a step. ``tokens``: predictions, of the task's unit; ``loss``: what was differentiated,
    auxiliary losses included."""

    nats: float
    tokens: int
    bytes: int
    loss: float


def forward_of(task: Task[Any, Any], model: Model) -> Forward:
    """The forward pass and the loss as one function of tensors, which can be compiled."""
    def forward(given: Any, state: ModelState | None) -> Scored:
        return task.loss(model, given, state)

    return forward


def add_gradients(task: Task[Any, Any], model: Model, batches: Sequence[Any], state: ModelState | None, *,
                  device: torch.device | str, forward: Forward | None = None,
                  world: World | None = None) -> tuple[Sums, ModelState | None]:
    """Add to the parameters' gradients those of

        L = 1/N sum (loss of each prediction) + sum_i (N_i / N) (auxiliary losses of batch i)

    with N the predictions of all batches (of all ranks) that count and N_i those of batch i. What is returned are sums
    over all ranks too; the gradients are of this rank's batches, see `weft.training.exchange`.

    Args:
        task: whose batches these are.
        model: in training mode.
        batches: of one step, this rank's rows of each.
        state: where rows go on, for a task that carries states from batch to batch, with no gradient between them.
        device: the model's.
        forward: of the model, `forward_of`, perhaps compiled; None: as it is.
        world: the ranks that share the step; None: this process alone.
    """
    world = World(torch.device(device)) if world is None else world
    run = forward_of(task, model) if forward is None else forward
    counts = [task.count(batch) for batch in batches]
    tokens, size = map(int, world.total(sum(count.predictions for count in counts),
                                        sum(count.bytes for count in counts)))
    total = max(1, tokens)
    nats, loss = 0.0, 0.0
    for batch, count in zip(batches, counts, strict=True):
        if count.fresh or state is None:
            state = task.start(model, count.rows, device)
        scored = run(task.given(batch, device), state)
        objective = _objective(scored, count.predictions, total)
        objective.backward()
        state = None if scored.state is None else scored.state.detach()
        nats += scored.nats.item()
        loss += objective.item()
    nats, loss = world.total(nats, loss)
    return Sums(nats, tokens, size, loss), state


def _objective(scored: Scored, predictions: int, total: int) -> Tensor:
    """A batch's part of L, with ``total`` for N."""
    share = predictions / total
    objective = scored.loss / total
    for extra in scored.losses:
        objective = objective + share * extra.value
    return objective
