"""Every dropout that a configuration can ask for acts in training, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.config import parse_part
from weft.core.heads import outputs
from weft.core.model import Encoder
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.core.span import WHOLE
from weft.laws import subject_of

GROUPS = ("mixer", "feedforward", "block", "model", "encoder")

Place = tuple[str | int, ...]


def places(data: Any, at: Place = ()) -> Iterator[Place]:
    """Where a field called dropout stands in plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if key == "dropout":
            yield (*at, key)
        yield from places(value, (*at, key))


def changed(data: Any, place: Place, value: float) -> Any:
    """The data with ``value`` there and no other dropout."""
    data = copy.deepcopy(data)
    for other in places(data):
        inner = data
        for key in other[:-1]:
            inner = inner[key]
        inner["dropout"] = value if other == place else 0.0
    return data


def fields() -> Iterator[Any]:
    for group in GROUPS:
        for part in REGISTRY.parts(group):
            example = part.examples()[0].dump()
            for place in places(example):
                yield pytest.param(group, example, place, id=f"{part.kind}: {'.'.join(map(str, place))}")


FIELDS = list(fields())


def output(group: str, data: Any, *, training: bool, seed: int) -> Tensor:
    config = parse_part((group,), data)
    torch.manual_seed(0)
    subject = subject_of(config, config.kind)
    assert subject is not None
    generator = torch.Generator().manual_seed(0)
    subject.module.train(training)
    x = subject.inputs(2, 6, generator)
    torch.manual_seed(seed)
    memory = subject.memory(2, generator)  # an encoder drops too
    y = subject.whole(x, memory).y
    module = subject.module
    return outputs(module.head, y, WHOLE).detach() if isinstance(module, Encoder) else y.detach()


@pytest.mark.parametrize(("group", "example", "place"), FIELDS)
def test_it_acts_in_training_and_not_in_evaluation(group: str, example: Any, place: Place) -> None:
    without, dropped = changed(example, place, 0.0), changed(example, place, 0.5)
    plain = output(group, without, training=False, seed=1)
    assert torch.equal(output(group, without, training=True, seed=1), plain)
    assert torch.equal(output(group, dropped, training=False, seed=1), plain)
    first, again, other = (output(group, dropped, training=True, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, plain) and not torch.allclose(first, other)


def own_dropout(part: type[PartConfig], example: PartConfig) -> set[float]:
    """Values of the part's own dropout fields, those of parts inside left out."""
    data = {name: value for name, value in example.dump().items() if name not in ("blocks", "layers", "encoder")}
    found = set()
    for place in places(data):
        inner = data
        for key in place:
            inner = inner[key]  # type: ignore[index, assignment]
        found.add(float(inner))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("part", [part for group in GROUPS for part in REGISTRY.parts(group)],
                         ids=lambda part: f"{part.group} {part.kind}")
def test_the_laws_see_every_part_with_its_dropout(part: type[PartConfig]) -> None:
    values = set().union(*(own_dropout(part, example) for example in part.examples()))
    assert not values or max(values) > 0
