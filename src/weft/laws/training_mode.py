"""Training mode computes what evaluation mode does except for dropout, which is applied in training only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from weft.core.declarations import Adjustable, Trait
from weft.core.model import Model
from weft.core.span import Memory
from weft.laws.in_pieces import few_pieces, in_pieces
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject

LAW = "training"


def training(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Without dropout, the outputs in training mode equal those in evaluation mode, in one call and in pieces; every
    dropout is applied in training and not in evaluation. Parts with the trait BATCH_STATISTICS are only required to
    give the same outputs twice in training mode."""
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        base = _whole(subject, x, memory)
        plain = in_training(subject, keep=None)
        if Trait.BATCH_STATISTICS in subject.traits:
            first, second = (_whole(in_training(subject, keep=None), x, memory) for _ in range(2))
            yield Finding(LAW, "in training, twice", difference(second, first), subject.bound)
        elif not varies(partial(_whole, plain, x, memory)):
            yield Finding(LAW, "in training without dropout, whole", difference(_whole(plain, x, memory), base),
                          subject.bound)
            if subject.stateful:
                yield Finding(LAW, "in training without dropout, in pieces",
                              difference(_pieces(plain, x, memory), base), subject.bound)
        drawn = varies(partial(_whole, subject, x, memory))
        yield Finding(LAW, f"evaluation {'draws' if drawn else 'draws no'} random numbers", float(drawn), COUNT)
        of_head = head_modules(subject.module)
        for place in dropouts(subject.module):
            if id(subject.module.get_submodule(place)) in of_head:
                continue  # `weft.laws.head_outputs` examines these
            one = in_training(subject, keep=place)
            applied = varies(partial(_whole, one, x, memory))
            yield Finding(LAW, f"{place or 'the part'} {'drops' if applied else 'does not drop'} in training",
                          float(not applied), COUNT)


def _whole(subject: Subject, x: Tensor, memory: Memory | None) -> Tensor:
    return subject.whole(x, memory).y


def _pieces(subject: Subject, x: Tensor, memory: Memory | None) -> Tensor:
    """The outputs in pieces, with gradients on, as in training."""
    with torch.enable_grad():
        state = subject.start(x.shape[0], memory, None, subject.steps)
        return in_pieces(subject, x, state, few_pieces(subject.steps))[0].detach()


def head_modules(module: nn.Module) -> frozenset[int]:
    """Identities of the modules of a model's head, which a call of the model does not run: a task calls the head."""
    head = module.head if isinstance(module, Model) else None
    return frozenset(id(part) for part in head.modules()) if head is not None else frozenset()


def varies(run: Callable[[], Tensor]) -> bool:
    """Whether the outputs depend on the seed of torch's generator."""
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(run())
    return not torch.equal(outputs[0], outputs[1])


def in_training(subject: Subject, keep: str | None) -> Subject:
    """A copy in training mode, in which only the part at ``keep`` has dropout."""
    module = copy.deepcopy(subject.module)
    for place in dropouts(module):
        part = module.get_submodule(place)
        if place != keep and isinstance(part, Adjustable):
            part.dropout_rate = 0.0
        elif place != keep and isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    again = replace(subject.remake(module), steps=subject.steps)
    module.train()
    return again


def dropouts(module: nn.Module) -> list[str]:
    """The paths of the modules with dropout."""
    return [place for place, part in module.named_modules() if _rate(part) > 0]


def _rate(part: nn.Module) -> float:
    """The dropout probability of this module itself."""
    if isinstance(part, Adjustable):
        return part.dropout_rate
    return part.p if isinstance(part, nn.modules.dropout._DropoutNd) else 0.0
