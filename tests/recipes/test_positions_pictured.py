"""The recorded study of positions: its numbers computed again, its page made of them, and its claims by hand."""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.core.strict_json import plain

RECIPE = Path(__file__).parents[2] / "recipes" / "positions_pictured"
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))
ROUNDING = 1e-9
"""Numbers below this are rounding errors of float64, which differ between machines."""


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The recipe's module of measures, whose neighbours it imports by name."""
    sys.path.insert(0, str(RECIPE))
    yield import_module("position_study")
    sys.path.remove(str(RECIPE))
    for name in ("position_study", "position_page"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def found(made: Any) -> Any:
    return made.study()


def page(found: Any) -> str:
    text: str = import_module("position_page").page(found, "")
    return text


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, inner in pairs for key, leaf in leaves(inner, f"{path}/{name}").items()}
    return {path: value}


def test_the_numbers_are_those_that_the_code_measures(found: Any) -> None:
    again, recorded = leaves(plain(found)), leaves(RECORD)
    assert again.keys() == recorded.keys(), "run recipes/positions_pictured/run.py"
    for place, value in recorded.items():
        if isinstance(value, float):
            # Nine digits are kept. The fitted rotation solves an ill-conditioned least squares. The weights of the
            # probe's models are drawn in float32, which processors round differently.
            relative, least = (0.05, 0.01) if "fitted" in place else (1e-4 if "/probe/" in place else 1e-6, ROUNDING)
            assert again[place] == pytest.approx(value, rel=relative, abs=least), place
        else:
            assert again[place] == value, place


def test_the_page_is_made_of_the_record(made: Any) -> None:
    text = page(made.PositionStudy.from_json(RECORD))
    assert (RECIPE / "README.md").read_text(encoding="utf-8") == text, "run recipes/positions_pictured/run.py"
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(pictures) == 4 and all((RECIPE / name).is_file() for name in pictures)


def test_the_recipe_writes_what_stands_here(tmp_path: Path, found: Any,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = runpy.run_path(str(RECIPE / "run.py"))
    monkeypatch.setitem(recipe["write"].__globals__, "study", lambda size: found)
    recipe["write"](tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in RECIPE.iterdir() if path.suffix in (".md", ".json", ".svg"))


def test_sinusoidal_and_rotary_proximities_are_said_not_to_be_monotone(found: Any, made: Any) -> None:
    rows = {row.kind: row for row in found.schemes}
    for kind, features in (("sinusoidal", 256), ("rope", made.SIZE)):
        theta = 10000.0 ** (-2 * np.arange(features // 2) / features)
        curve = np.cos(np.arange(128)[:, None] * theta).mean(1)
        first = int(np.flatnonzero(np.diff(curve) > 0)[0])
        assert rows[kind].holds is not None and rows[kind].holds.first_rise == first
        assert f"is not monotone: it grows again from distance {first} on" in page(found)
    assert rows["alibi"].holds is not None and rows["alibi"].holds.first_rise is None
    assert rows["shaw"].holds is None and rows["none"].holds is None


def test_the_bound_is_that_of_the_paper(found: Any, made: Any) -> None:
    theta = 10000.0 ** (-2 * np.arange(made.SIZE // 2) / made.SIZE)
    for distance in (0, 1, 17, 255):
        sums = [abs(np.exp(1j * distance * theta[:j]).sum()) for j in range(1, made.SIZE // 2 + 1)]
        assert found.decay.mean_sum[distance] == pytest.approx(np.mean(sums))
    assert 0 < found.decay.worst <= 1
    random = np.random.default_rng(5)
    q, k = random.normal(size=(2, made.SIZE // 2, 2))
    pairs = (q[:, 0] + 1j * q[:, 1]) * (k[:, 0] - 1j * k[:, 1])
    steps = np.abs(np.diff(np.append(pairs, 0))).max()
    for distance in range(200):
        score = abs((pairs * np.exp(1j * distance * theta)).sum().real)
        sums = np.abs(np.cumsum(np.exp(1j * distance * theta))).sum()
        assert score <= steps * sums * (1 + 1e-12)


def test_the_bound_of_a_single_pair_is_its_size(made: Any) -> None:
    """h(1) is 0 behind the last pair, so a score |Re h(0) exp(i m theta)| is at most |h(0)|, and nearly reaches it."""
    config: Any = REGISTRY.get(("position",), "rope")()
    found = made.decay(config.build_for_heads(Dims(2), 1, 2), 2, 50)
    assert 0.99 < found.worst <= 1 + 1e-12
    assert found.mean_sum == pytest.approx([1.0] * 50)


def test_what_holds_of_permutations_and_rotations(found: Any) -> None:
    assert found.equivariance.without_positions < 1e-14  # sums of 16 terms in another order
    assert found.equivariance.causal > 0.1 and found.equivariance.rotary > 0.01
    assert all(each.error < 1e-11 for each in found.rotations)  # angles up to 1100 radians in float64
    assert found.wavelengths[0] == pytest.approx(2 * math.pi)
    assert min(found.probe.causal) > 0.1 > max(*found.probe.bidirectional, *found.probe.embeddings)
    assert len(set(found.probe.causal)) == len(found.probe.causal) == 5  # models differ


def test_what_memory_held_before_changes_no_probe(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's default least squares takes what is in unwritten memory for columns to begin with."""
    solve = torch.linalg.lstsq

    def solved(*args: Any, **options: Any) -> Any:
        held = [torch.ones(size, dtype=torch.int32) for size in range(60, 72) for _ in range(4)]
        del held
        return solve(*args, **options)

    monkeypatch.setattr(torch.linalg, "lstsq", solved)
    for _ in range(4):
        assert made.probe(models=1).causal[0] == pytest.approx(RECORD["probe"]["causal"][0], rel=1e-4)
