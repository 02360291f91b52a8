"""A part that chooses experts is run with several random weights, because a defect may show for some choices only."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from weft.core.traits import Trait
from weft.laws.report import Finding
from weft.laws.separate_rows import ragged
from weft.laws.split import split
from weft.laws.subject import Subject

LAW = "seeds"
DRAWS = 8
"""The number of random weights; with a few experts, each is then chosen by some token and left out by another."""


def seeds(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The laws of ragged rows and of pieces, with other random weights each time."""
    if Trait.DISCRETE_CHOICE not in subject.traits or not subject.differentiable:
        return
    for draw in range(DRAWS):
        other = replace(subject.remake(_drawn(subject.module, generator)), thorough=False, steps=subject.steps)
        for law in (ragged, split):
            for finding in law(other, generator):
                yield replace(finding, law=LAW, case=f"weights {draw}, {finding.law}: {finding.case}")


@torch.no_grad()
def _drawn(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with random parameters of the same mean and standard deviation as before."""
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        if parameter.numel() > 1:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
            parameter.copy_(parameter.mean() + noise * parameter.std())
    return other
