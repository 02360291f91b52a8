"""Layers and models whose rows are cut among processes, compared with one process that has the whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.core.part_config import PartConfig
from weft.core.span import WHOLE, Span
from weft.laws.discovery import every_example, subject_of
from weft.laws.subject import Subject, with_facts
from weft.core.layer import facts_of
from weft.parallel.context import Context

STEPS = 11
"""Tokens of a row: 2 processes have 5 and 6, 4 have 2, 3, 3 and 3."""


def spans(cut: int) -> dict[str, Span]:
    """Spans of three rows: whole, packed with documents that begin before, at and after a cut, and ragged."""
    begins = torch.zeros(3, STEPS, dtype=torch.bool)
    begins[0, [2, cut, cut + 2]] = True
    begins[1, cut] = True
    begins[2, [cut - 1, cut + 1]] = True
    count = torch.tensor([STEPS, cut, 1])
    return {"whole": WHOLE, "packed": Span(begins=begins), "ragged": Span(count=count, begins=begins)}


def difference(subject: Subject, context: Context, span: Span, x: Tensor) -> float:
    """The largest difference of outputs and gradients, relative to the largest of each, from one process's."""
    memory = subject.memory(len(x), torch.Generator().manual_seed(2))
    weights = torch.randn(*x.shape[:2], 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    span = with_facts(replace(span, memory=memory), x, sorted(facts_of(subject.module)))
    leaf = x.clone().requires_grad_(x.is_floating_point())
    y = subject.module(leaf, None, span).y
    alone = gradients(subject.module, leaf, (y * weights).square().sum())
    leaf = x.clone().requires_grad_(x.is_floating_point())
    with context.piece(subject.module, x.shape, span) as piece:
        own = piece.span.clean(subject.module(leaf[:, piece.tokens], piece.state, piece.span).y)
        found = gradients(subject.module, leaf, piece.closed((own * weights[:, piece.tokens]).square().sum()))
    for gradient in found:
        dist.all_reduce(gradient)
    pairs = [(own.detach(), y.detach()[:, piece.tokens]), *zip(found, alone, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs if a.numel())


def gradients(module: nn.Module, x: Tensor, loss: Tensor) -> list[Tensor]:
    module.zero_grad()
    loss.backward()
    leaves = [x] if x.is_floating_point() else []
    return [torch.zeros_like(each) if each.grad is None else each.grad.clone()
            for each in [*leaves, *module.parameters()]]


def cases(groups: tuple[str, ...]) -> Iterator[tuple[str, PartConfig]]:
    for name, config in every_example():
        if config.group in groups:
            yield name, config
