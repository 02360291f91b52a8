"""What a study says of two models, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SeedTest: TypeAlias = Literal["welch", "paired"]
"""Of two models' runs: Welch's, which takes all runs as independent, or paired by number, as those of one
number have the same seeds."""


@dataclass(frozen=True)
class Interval:
    """An estimate with a two-sided interval at the study's confidence; the bounds are None where one run gives none."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class GapPoint:
    """The difference of a pair at one share of the budget."""

    share: float
    difference: Interval


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second``, in bits per byte: below zero, ``first`` predicts better.

    Attributes:
        over_seeds: Student's t over the runs, by the study's test: would other runs say the same.
        over_documents: bootstrap clustered by document, over the test text: would another text say the same.
        seed_error: standard error of the difference of the means, from run to run; None with a single run.
        document_error: standard error of the same difference, from document to document of the test text.
        p_value: two-sided, of the wider of both sources of doubt; None when it cannot be had.
        p_holm: after Holm's correction over all pairs of the study.
        tied: the corrected test does not tell the two apart.
        gaps: the difference at several shares of the budget.
        crosses: the sign of the difference changes during training, beyond the interval.
    """

    first: str
    second: str
    over_seeds: Interval
    over_documents: Interval
    seed_error: float | None
    document_error: float
    p_value: float | None
    p_holm: float | None
    tied: bool
    gaps: tuple[GapPoint, ...]
    crosses: bool
