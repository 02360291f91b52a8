"""The comparisons of a law (`Finding`), of all laws on one subject (`Report`), and how two tensors are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

COUNT = 0.5
"""The bound of comparisons whose difference counts violations, of which none is allowed."""


@dataclass(frozen=True)
class Finding:
    """One comparison.

    Attributes:
        case: what was compared: where the row was cut, padded or packed, which rows of a state were selected.
        difference: the largest absolute difference, divided by the largest expected value if that exceeds one.
        bound: the largest difference that is allowed.
        token: the first token that exceeds the bound, counted from 1; None if none does or it is not known.
    """

    law: str
    case: str
    difference: float
    bound: float
    token: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the difference is within its bound."""
        return self.difference <= self.bound

    @property
    def counts(self) -> bool:
        """Whether the difference is a number of violations, which the case names."""
        return self.bound == COUNT


@dataclass(frozen=True)
class Report:
    """All comparisons on one subject.

    Attributes:
        steps: tokens of the longest row.
    """

    subject: str
    findings: tuple[Finding, ...]
    steps: int = 11

    @property
    def holds(self) -> bool:
        """Whether every law holds."""
        return all(finding.holds for finding in self.findings)

    def broken(self) -> list[Finding]:
        """The comparisons that fail, worst first."""
        return sorted((f for f in self.findings if not f.holds), key=lambda f: -f.difference)

    def worst(self) -> dict[str, Finding]:
        """For each law the comparison that comes closest to its bound, or exceeds it most."""
        worst: dict[str, Finding] = {}
        for finding in self.findings:
            other = worst.get(finding.law)
            if other is None or finding.difference / finding.bound > other.difference / other.bound:
                worst[finding.law] = finding
        return worst


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest absolute difference, divided by the largest expected value if that exceeds one; infinite for NaN and
    for tensors of different shapes. Equal infinities agree: an unsmoothed n-gram gives the logarithm of zero."""
    if actual.shape != expected.shape:
        return math.inf
    if actual.numel() == 0:
        return 0.0
    a, b = actual.detach().double(), expected.detach().double()
    worst, size = float((a - b).abs().max()), float(b.abs().max())
    if math.isfinite(worst) and math.isfinite(size):
        return worst / max(1.0, size)
    same = a == b
    gap = torch.where(same, 0.0, (a - b).abs())
    if bool(gap.isnan().any()):
        return math.inf
    finite = b[b.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return float(gap.max()) / scale


def compare(law: str, case: str, actual: Tensor, expected: Tensor, bound: float) -> Finding:
    """The comparison of outputs [B,T,...] with those expected, with the first token that exceeds the bound."""
    worst = difference(actual, expected)
    return Finding(law, case, worst, bound, None if worst <= bound else first_wrong(actual, expected, bound))


def first_wrong(actual: Tensor, expected: Tensor, bound: float) -> int | None:
    """The first token of [B,T,...], counted from 1, at which some row differs by more than ``bound``, scaled as in
    `difference`; None if there is none or the shapes differ."""
    if actual.shape != expected.shape or actual.dim() < 2:
        return None
    a, b = actual.detach().double(), expected.detach().double()
    finite = b[b.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    wrong = ~((a == b) | ((a - b).abs() <= bound * scale))
    tokens = wrong.transpose(0, 1).flatten(1).any(1).nonzero().flatten()
    return int(tokens[0]) + 1 if tokens.numel() else None


def gradient_difference(actual: list[Tensor | None], expected: list[Tensor | None]) -> float:
    """The largest `difference` of all pairs of gradients; a gradient of None counts as zero."""
    worst = 0.0
    for a, b in zip(actual, expected, strict=True):
        if a is None and b is None:
            continue
        known = b if a is None else a
        assert known is not None
        zero = torch.zeros_like(known)
        worst = max(worst, difference(zero if a is None else a, zero if b is None else b))
    return worst
