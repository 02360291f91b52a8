"""The cost of a deep model from shallow ones: of its first block alone, and of that with one and two blocks of each
further kind.

What a plan counts grows by the same amount with every further equal block (the first of a kind may add a mask or a
table that the others share), so that the time to plan a model does not depend on its depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from weft.analysis.calls import TrainingStep
from weft.analysis.flops import Flops, PartFlops
from weft.analysis.kernels import FormChoice
from weft.analysis.memory import States, TrainingMemory, growth
from weft.analysis.parts import ParameterGroup, Parameters, PartParameters
from weft.core.model import Model, ModelConfig
from weft.core.part_config import PartConfig, expand, kinds_of

T = TypeVar("T")
SHALLOW = 6
"""Blocks up to which a model is run whole."""


@dataclass(frozen=True)
class ShallowModel:
    """A shallow model, and how often its cost counts in the deep one's (the first one's a negative number of times)."""

    config: ModelConfig
    weight: int


def shallow_models(source: ModelConfig | Model) -> tuple[ShallowModel, ...] | None:
    """The models that a deep model's plan is made of; None: it is run whole."""
    if not isinstance(source, ModelConfig) or source.rewrites or not source.stack():
        return None
    first, *others = (block for _, block in expand(source.stack()))
    kinds = kinds_of(others)
    if len(others) < SHALLOW or 2 * (len(kinds) + 1) > len(others):
        return None

    def with_blocks(weight: int, *blocks: PartConfig) -> ShallowModel:
        return ShallowModel(source.with_(blocks=list(blocks)), weight)

    found: list[ShallowModel] = []
    alone = 1
    for block, number in kinds:
        again = 0 if block == first else number - 1
        found += [with_blocks(number - 2 * again, first, block)] + ([with_blocks(again, first, block, block)] if again
                                                                    else [])
        alone -= number - again
    return (with_blocks(alone, first), *found)


class PlanSums:
    """Sums over the parts of several plans, each plan with its weight."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = weights

    def number(self, numbers: Iterable[Any]) -> Any:
        """The weighted sum."""
        return sum(weight * number for weight, number in zip(self.weights, numbers, strict=True))

    def mapping(self, mappings: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The weighted sums by key; a missing one is 0."""
        keys = dict.fromkeys(key for each in mappings for key in each)
        return {key: self.number(each.get(key, 0) for each in mappings) for key in keys}

    def records(self, rows: Sequence[Sequence[T]], key: Callable[[T], Hashable],
                add: Callable[[T, Callable[[str], Any]], T]) -> tuple[T, ...]:
        """Records of all plans, those of equal keys added by ``add``, which is given the first of them and the weighted
        sum of a field by its name."""
        found: dict[Hashable, list[T | None]] = {}
        for at, row in enumerate(rows):
            for each in row:
                found.setdefault(key(each), [None] * len(rows))[at] = each
        return tuple(add(next(one for one in same if one is not None), partial(self._field, same))
                     for same in found.values())

    def _field(self, records: Sequence[Any], name: str) -> Any:
        """The weighted sum of a field; a missing record counts 0."""
        return self.number(0 if each is None else getattr(each, name) for each in records)

    def parameters(self, found: Sequence[Parameters]) -> Parameters:
        """The figure of the deep model."""
        def of(name: str) -> int:
            return int(self.number(getattr(each, name) for each in found))

        total = of("total")
        parts = self.records([each.parts for each in found], lambda part: part.part,
                             lambda part, sums: PartParameters(part.part, sums("numbers"), sums("numbers") / total))
        groups = self.records([each.groups for each in found], lambda group: (group.path, group.shape), _grown)
        return Parameters(total, of("embeddings"), of("active"), found[0].tied, of("trained"), parts, groups)

    def flops(self, found: Sequence[Flops]) -> Flops:
        """The figure of the deep model."""
        full, visible = (self.number(getattr(each, name) for each in found) for name in ("full", "visible"))
        parts = self.records([each.parts for each in found], lambda part: part.part, lambda part, sums: PartFlops(
            part.part, sums("full"), sums("visible"), sums("full") / full, sums("visible") / visible))
        uncounted = tuple(sorted({name for each in found for name in each.uncounted}))
        return Flops(found[0].context, full, visible, parts, self.mapping([each.fourier for each in found]), uncounted)

    def training(self, found: Sequence[TrainingMemory]) -> TrainingMemory:
        """The figure of the deep model."""
        return TrainingMemory(*(self.number(getattr(each, name) for each in found)
                                for name in ("weights", "gradients", "optimizer")))

    def step(self, found: Sequence[TrainingStep]) -> TrainingStep:
        """The figure of the deep model."""
        return replace(found[0], flops=self.number(each.flops for each in found),
                       activations=self.number(each.activations for each in found),
                       activations_by_part=self.mapping([each.activations_by_part for each in found]))

    def states(self, found: Sequence[States]) -> States:
        """The sizes of states of the deep model, at the contexts that all have."""
        sizes = [{size.context: size for size in each.sizes} for each in found]
        shared = [context for context in sizes[0] if all(context in each for each in sizes)]
        return growth(tuple(replace(sizes[0][context], bytes=self.number(each[context].bytes for each in sizes))
                            for context in shared))

    def forms(self, found: Sequence[tuple[FormChoice, ...]]) -> tuple[FormChoice, ...]:
        """The figure of the deep model."""
        return self.records(found, lambda each: (each.operation, each.form, each.reason, each.passed),
                            lambda each, sums: replace(each, calls=sums("calls")))


def _grown(group: ParameterGroup, summed: Callable[[str], Any]) -> ParameterGroup:
    numbers, size = summed("numbers"), math.prod(group.shape)
    return replace(group, numbers=numbers, copies=numbers // size if size else 1)
