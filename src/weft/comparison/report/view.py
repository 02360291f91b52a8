"""A study as every section of the report reads it: the order of the models, how each looks, and what was compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from weft.comparison.results import StudyModel
from weft.comparison.statistics import Interval, negated
from weft.comparison.study_result import Difference, GapPoint, StudyResult
from weft.comparison.verdict import tied_with
from weft.drawing.marks import ModelStyle, swatch
from weft.drawing.markup import Markup, join, shorten, tag
from weft.drawing.numbers import known

COLUMNS = 40
"""Longest name in running text and tables; the whole name stands with the model's configuration."""


@final
@dataclass(frozen=True)
class View:
    """A study as the report reads it."""

    result: StudyResult

    @cached_property
    def styles(self) -> dict[str, ModelStyle]:
        """By the order of entry, so that a model keeps its colour whatever its rank."""
        return {entry.name: ModelStyle(index) for index, entry in enumerate(self.result.entries)}

    @cached_property
    def ranked(self) -> tuple[StudyModel, ...]:
        """Best first; models without a figure last, in the order of entry."""
        def key(entry: StudyModel) -> float:
            mean = entry.bits_per_byte
            return mean if mean is not None and math.isfinite(mean) else math.inf

        return tuple(sorted(self.result.entries, key=key))

    @cached_property
    def best(self) -> StudyModel | None:
        """The model of the lowest mean; None when no run finished."""
        return self.ranked[0] if self.ranked and known(self.ranked[0].bits_per_byte) else None

    @cached_property
    def best_trained(self) -> StudyModel | None:
        """The best of those that gradients train; None when no run of them finished."""
        return next((entry for entry in self.ranked if entry.trainable and known(entry.bits_per_byte)), None)

    @cached_property
    def top(self) -> tuple[str, ...]:
        """The best model and those that are not told apart from it, best first; empty without a best."""
        if self.best is None:
            return ()
        tied = tied_with(self.best.name, self.result.tied_sets)
        return (self.best.name, *(entry.name for entry in self.ranked if entry.name in tied))

    @cached_property
    def ordered_pairs(self) -> tuple[Difference, ...]:
        """Every difference, the model with the lower mean second, in the order of the models."""
        rank = {entry.name: place for place, entry in enumerate(self.ranked)}
        worse_first = [each if rank[each.first] > rank[each.second] else turned(each)
                       for each in self.result.differences]
        return tuple(sorted(worse_first, key=lambda each: (rank[each.second], rank[each.first])))

    def name(self, entry: StudyModel | str, columns: int = COLUMNS) -> Markup:
        """A model's name in text."""
        name = entry if isinstance(entry, str) else entry.name
        short = shorten(name, columns)
        first, *rest = short.split("_")  # a line may end behind an underscore, rather than anywhere
        return tag("b", {"title": name if short != name else None}, join(
            first, *[join("_", tag("wbr"), part) for part in rest]))

    def key(self, entry: StudyModel | str, columns: int = COLUMNS) -> Markup:
        """Swatch and name, for tables."""
        name = entry if isinstance(entry, str) else entry.name
        return tag("span", {"class": "key"}, swatch(self.styles[name]), join(" "), self.name(name, columns))

    def entry(self, name: str) -> StudyModel:
        """The model of that name."""
        return next(entry for entry in self.result.entries if entry.name == name)

    def against_best(self, entry: StudyModel) -> Difference | None:
        """``entry`` minus the best model."""
        if self.best is None or entry.name == self.best.name:
            return None
        return self.difference(entry.name, self.best.name)

    def difference(self, first: str, second: str) -> Difference | None:
        """The comparison of two models, whichever way round the study holds it, as ``first`` minus ``second``."""
        for each in self.result.differences:
            if (each.first, each.second) == (first, second):
                return each
            if (each.first, each.second) == (second, first):
                return turned(each)
        return None


def turned(difference: Difference) -> Difference:
    """The same comparison the other way round."""
    return replace(difference, first=difference.second, second=difference.first,
                   over_seeds=negated(difference.over_seeds), over_documents=negated(difference.over_documents),
                   over_both=negated(difference.over_both),
                   gaps=tuple(GapPoint(gap.share, negated(gap.difference)) for gap in difference.gaps))


def half_width(interval: Interval) -> float | None:
    """Half of the interval; None without one."""
    if interval.low is None or interval.high is None:
        return None
    half = (interval.high - interval.low) / 2
    return half if math.isfinite(half) else None
