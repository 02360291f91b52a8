"""The four ways of a window's attention: against the oracle, values and gradients; and the record of their cost."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from by_hand import require_agreement
from oracles import attention as oracle
from oracles import masks

RECIPE = Path(__file__).parents[2] / "recipes" / "windows"
WAYS = ["naive", "per token", "overlapping chunks", "fast"]


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The recipe's module, whose neighbour it imports by name."""
    sys.path.insert(0, str(RECIPE))
    yield import_module("run")
    sys.path.remove(str(RECIPE))
    for name in ("run", "windows"):
        sys.modules.pop(name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("steps", "size"), [(1, 3), (7, 3), (9, 3), (8, 1), (5, 9)])
def test_each_way_is_the_oracle_s(made: Any, way: str, steps: int, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, steps, 2, 3, dtype=torch.float64, generator=generator, requires_grad=True)
             for _ in range(3)]
    seen = masks.dense(lambda i, j: masks.window(i, j, size), range(steps), range(steps))

    def run(q: Any, k: Any, v: Any) -> Any:
        y = np.zeros(v.shape)
        for row in range(2):
            for head in range(2):
                weights = oracle.weights(oracle.scores(q[row, :, head], k[row, :, head]), mask=seen)
                y[row, :, head] = weights @ v[row, :, head]
        return y

    require_agreement(made.WAYS[way](*given, size), given, run)


@pytest.mark.parametrize("way", WAYS[:3])
def test_they_agree_with_the_fast_way_beyond_its_blocks(made: Any, way: str) -> None:
    """In float32 on rows longer than a block of queries: a thousand roundings of numbers near 1."""
    outcomes = []
    for name in (way, "fast"):
        q, k, v = made.inputs(600)
        y = made.WAYS[name](q, k, v, 70)
        outcomes.append([y.detach(), *torch.autograd.grad((y * torch.arange(3.0).repeat(11)[:32]).sum(), [q, k, v])])
    for ours, theirs in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_record_is_of_what_stands_here(made: Any) -> None:
    found = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))
    assert found["settings_sha256"] == made.settings_sha256(), "the recipe has changed; run recipes/windows/run.py"
    assert list(found["costs"]) == WAYS
    assert made.table(found) in (RECIPE / "README.md").read_text(encoding="utf-8"), "run it with --draw"
    for figure in made.pictures(found):
        picture = (RECIPE / f"{figure.name}.svg").read_text(encoding="utf-8")
        assert picture == figure.alone(), "run it with --draw"
        groups = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}g")
        assert [each.attrib["data-curve"] for each in groups if "data-curve" in each.attrib] == WAYS


def test_the_fast_way_grows_with_the_row_and_the_naive_one_with_its_square(made: Any) -> None:
    """Of the recorded figures, over the last doubling: memory is counted, and leaves no room for noise."""
    costs = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))["costs"]
    assert made.growth(costs["naive"], "peak") > 1.8
    assert all(made.growth(costs[way], "peak") < 1.3 for way in ("overlapping chunks", "fast"))
    assert costs["fast"]["8192"]["both"] < min(costs[way]["8192"]["both"] for way in WAYS[:3])
