"""Whether the runs of a model look like a mixture: its attempts chose different learning rates, and runs differ by the
rate far more than runs of one rate do.

Student's interval supposes normal values. Where a rate that is seldom chosen costs much, few runs show little of it,
and the interval is too short or beside the mean: `recipes/tuning` measures how often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.comparison.results import StudyModel
from weft.comparison.student import incomplete_beta

LEVEL = 0.05
"""The share of studies of which a mixture is told although rates make no difference, at the most; for all models of a
study together, after Bonferroni's correction."""


@dataclass(frozen=True)
class RateMixture:
    """A model whose runs differ by their learning rates.

    Attributes:
        means: bits per byte of the runs of each rate, by rising rate, with the number of runs.
        p_value: of as large a difference by rate where rates make none.
    """

    name: str
    means: tuple[tuple[float, int, float], ...]
    p_value: float

    def words(self) -> str:
        """The finding and its consequence, in words."""
        rates = ", ".join(f"{rate:.2g} in {runs}, mean {bits:.3f}" for rate, runs, bits in self.means)
        return (f"{self.name}: the runs are a mixture. Attempts chose different learning rates ({rates}), and runs "
                f"differ by the rate more than runs of one rate do (p = {self.p_value:.2g}). The interval of the mean "
                "and what is tested with it suppose one kind of runs and are not to be trusted: a costly rate that is "
                "seldom chosen is missed or weighs too much. Longer trials (trials.share, up to 1) choose better; more "
                "seeds say how often each rate is chosen.")


def mixtures(entries: Sequence[StudyModel]) -> tuple[RateMixture, ...]:
    """The models whose runs look like a mixture, in their order.

    Every model that has a rate with two runs and another rate is tested by an analysis of variance of its runs by their
    rates, which needs no other model to spread alike. `recipes/tuning` has its power: a difference of five
    deviations is told of in a quarter of the studies with three runs, in 85 % with five.
    """
    tested = [(entry.name, found) for entry in entries if (found := by_rate(entry))]
    return tuple(RateMixture(name, tuple((rate, len(bits), math.fsum(bits) / len(bits)) for rate,
                                         bits in found.items()), p)
                 for name, found in tested if (p := equal_means(list(found.values()))) * len(tested) <= LEVEL)


def by_rate(entry: StudyModel) -> dict[float, list[float]]:
    """Bits per byte of the finished runs by their learning rates, rising; nothing where all chose the same or no two
    did."""
    found = {rate: [run.bits_per_byte for run in entry.finished if run.lr == rate and run.bits_per_byte is not None]
             for rate in entry.rates}
    return found if len(found) > 1 and any(len(bits) > 1 for bits in found.values()) else {}


def equal_means(groups: Sequence[Sequence[float]]) -> float:
    """The p-value of the one-way analysis of variance: of as large a difference between groups of normal values of one
    variance where their means are equal.

        F = (B / (k - 1)) / (W / (n - k)),    P(F' > F) = I_x((n - k) / 2, (k - 1) / 2),    x = W / (W + B)

    with B and W the sums of squares between and within k groups of n values together (Abramowitz and Stegun 1964,
    26.6.2).
    """
    count = sum(map(len, groups))
    means = [math.fsum(each) / len(each) for each in groups]
    whole = math.fsum(map(math.fsum, groups)) / count
    between = math.fsum(len(each) * (mean - whole) ** 2 for each, mean in zip(groups, means, strict=True))
    within = math.fsum((value - mean) ** 2 for each, mean in zip(groups, means, strict=True) for value in each)
    if between <= 0:
        return 1.0
    return incomplete_beta(within / (within + between), (count - len(groups)) / 2, (len(groups) - 1) / 2)
