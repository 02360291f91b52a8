"""From batches to gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.core.model import LanguageModel, ModelState
from weft.core.output import Loss
from weft.core.span import Span
from weft.data import Batch
from weft.data.tensors import to_tensors
from weft.training.objective import ObjectiveSettings, cross_entropy
from weft.training.parallel import World


class Scored(NamedTuple):
    """A batch under a model: summed negative log-likelihood of its scored targets in nats, the sum that is
    differentiated, the state after it, and the model's own losses."""

    nats: Tensor
    loss: Tensor
    state: ModelState | None
    losses: tuple[Loss, ...]


Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor, ModelState | None, Span], Scored]
"""Inputs, targets and which of them count, all [B,T], the state before, and what the batch does to each row."""


class Sums(NamedTuple):
    """Sums over the batches of a step. ``loss``: what was differentiated, auxiliary losses included."""

    nats: float
    tokens: int
    bytes: int
    loss: float


def forward_of(model: LanguageModel, objective: ObjectiveSettings) -> Forward:
    """The forward pass and the loss as one function of tensors, which can be compiled."""
    def forward(inputs: Tensor, targets: Tensor, scored: Tensor, state: ModelState | None, span: Span) -> Scored:
        out = model.hidden(inputs, state, span)
        found = cross_entropy(model.readout, out.y, targets, scored, objective)
        return Scored(found.nats, found.loss, out.state, out.losses)

    return forward


def span_of(batch: Batch, begins: Tensor, count: Tensor | None = None) -> Span:
    """What the batch does to each row; ``begins`` and ``count`` are the batch's, on the model's device. A row that
    starts afresh needs no mark on its first token, and a batch in which no other document begins is not packed, so that
    it can take the fast paths."""
    inner = batch.begins[:, 1:] if batch.fresh else batch.begins
    return Span(count=count, begins=begins if inner.any() else None, fresh=batch.fresh)


def add_gradients(model: LanguageModel, batches: Sequence[Batch], state: ModelState | None, *, carry: bool,
                  device: torch.device | str, forward: Forward | None = None,
                  world: World | None = None) -> tuple[Sums, ModelState | None]:
    """Add to the parameters' gradients those of

        L = 1/N sum (loss of each target) + sum_i (N_i / N) (auxiliary losses of batch i)

    with N the targets of all batches (of all ranks) that count and N_i those of batch i. What is returned are sums over
    all ranks too; the gradients are of this rank's batches, see `World.add_gradients`.

    Args:
        model: in training mode.
        batches: of one step, this rank's rows of each.
        state: where rows go on, for ``carry``.
        carry: rows continue from batch to batch, with no gradient between them.
        device: the model's.
        forward: of the model, `forward_of`, perhaps compiled; None: with the negative log-likelihood as loss.
        world: the ranks that share the step; None: this process alone.
    """
    world = World(torch.device(device)) if world is None else world
    run = forward_of(model, ObjectiveSettings()) if forward is None else forward
    tokens, size = map(int, world.total(sum(batch.scored_tokens for batch in batches),
                                        sum(batch.scored_bytes for batch in batches)))
    total = max(1, tokens)
    nats, loss = 0.0, 0.0
    for batch in batches:
        if carry and (batch.fresh or state is None):
            state = model.init_state(batch.inputs.shape[0], device=device)
        here = to_tensors(batch, device)
        scored = run(here.inputs, here.targets, here.scored, state if carry else None,
                     span_of(batch, here.begins, here.count))
        objective = _objective(scored, batch, total)
        objective.backward()
        state = None if scored.state is None else scored.state.detach()
        nats += scored.nats.item()
        loss += objective.item()
    nats, loss = world.total(nats, loss)
    return Sums(nats, tokens, size, loss), state


def _objective(scored: Scored, batch: Batch, total: int) -> Tensor:
    """A batch's part of L, with ``total`` for N."""
    share = batch.scored_tokens / total
    objective = scored.loss / total
    for extra in scored.losses:
        objective = objective + share * extra.value
    return objective
