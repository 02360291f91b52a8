"""A part that chooses is tried with several draws of its weights: a fault that one choice hides shows in another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from weft.core.traits import Trait
from weft.laws.report import Finding
from weft.laws.rows import ragged
from weft.laws.split import split
from weft.laws.subject import Subject

LAW = "seeds"
DRAWS = 8
"""Of the weights; with a handful of experts every one is then chosen, and left out, by some token in some row."""


def seeds(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Rows alone and pieces against the whole, with other weights each time."""
    if Trait.DISCRETE_CHOICE not in subject.traits or not subject.differentiable:
        return
    for draw in range(DRAWS):
        other = replace(subject.remake(_drawn(subject.module, generator)), thorough=False, steps=subject.steps)
        for law in (ragged, split):
            for finding in law(other, generator):
                yield replace(finding, law=LAW, case=f"weights {draw}, {finding.law}: {finding.case}")


@torch.no_grad()
def _drawn(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy whose parameters are drawn anew, as widely spread as they were."""
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        if parameter.numel() > 1:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
            parameter.copy_(parameter.mean() + noise * parameter.std())
    return other
