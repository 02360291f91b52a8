"""The recorded study of HiPPO's memory: its numbers computed again, its page made of them, and its claims."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from weft.core.model import parse_model

RECIPE = Path(__file__).parents[2] / "recipes" / "hippo"
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The recipe's module, whose neighbour it imports by name."""
    sys.path.insert(0, str(RECIPE))
    yield import_module("run")
    sys.path.remove(str(RECIPE))
    for name in ("run", "memory"):
        sys.modules.pop(name)


def test_the_page_is_made_of_the_record(made: Any) -> None:
    assert made.table(RECORD) in (RECIPE / "README.md").read_text(encoding="utf-8"), "run recipes/hippo/run.py"
    for figure in made.pictures(RECORD):
        assert (RECIPE / f"{figure.name}.svg").read_text(encoding="utf-8") == figure.alone()


def test_the_numbers_are_those_that_the_code_measures(made: Any) -> None:
    u = made.signal(made.STEPS)
    np.testing.assert_allclose(RECORD["signal"], u, rtol=1e-5, atol=1e-7)
    curve = made.reconstructed(made.remembered(u, 16), made.STEPS)
    np.testing.assert_allclose(RECORD["curves"]["16"], curve, rtol=1e-4, atol=1e-5)
    assert made.relative_error(curve, u) == pytest.approx(RECORD["errors"]["16"], rel=1e-5)
    for kind, each in RECORD["ages"].items():
        seeds = [0] if kind == "legs" else range(made.DRAWS)
        again = np.mean([made.lost(made.systems(kind, made.SIZE, [each["dt"]], seed), made.HORIZON,
                                   made.CORRELATION).numpy()[0] for seed in seeds], 0)
        np.testing.assert_allclose(each["lost"], again, rtol=1e-3, atol=1e-6)


def test_polynomials_are_remembered_as_they_are(made: Any) -> None:
    """A state of N numbers holds the coefficients of a polynomial of degree N - 1: only the steps leave an error, of
    about the inverse of their number."""
    at = (np.arange(2000) + 0.5) / 2000
    u = 1 - 3 * at + 5 * at ** 3
    assert made.relative_error(made.reconstructed(made.remembered(u, 4), 2000), u) < 5e-3
    assert made.relative_error(made.reconstructed(made.remembered(u, 3), 2000), u) > 2e-2


def test_what_is_lost_is_what_no_linear_map_finds(made: Any) -> None:
    """Against least squares over random inputs, for one system without noise to speak of."""
    system = made.systems("random", 3, [0.3], 1)
    horizon, random = 6, np.random.default_rng(0)
    covariance = np.exp(-np.abs(np.subtract.outer(np.arange(24), np.arange(24))) / 5.0)
    inputs = random.standard_normal((20000, 24)) @ np.linalg.cholesky(covariance).T  # latest first
    column, columns = system.b[0].numpy(), []
    for _ in range(24):
        columns.append(column)
        column = system.a[0].numpy() @ column
    states = inputs @ np.array(columns)
    fitted = np.linalg.lstsq(states, inputs, rcond=None)[0]
    shares = np.mean((inputs - states @ fitted) ** 2, 0)[:horizon]
    np.testing.assert_allclose(made.lost(system, horizon, 5.0)[0].numpy(), shares, atol=0.03)


def test_hippo_remembers_more_than_random_matrices() -> None:
    errors = [RECORD["errors"][size] for size in ("4", "8", "16", "32")]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02
    assert RECORD["ages"]["legs"]["mean"] < 0.5 * RECORD["ages"]["random"]["mean"]


def test_models_of_the_study_are_built() -> None:
    study = yaml.safe_load((RECIPE / "unstructured.yaml").read_text(encoding="utf-8"))
    sizes = {}
    for name, entry in study["models"].items():
        model = json.loads(json.dumps(entry["config"]["model"]))
        layers = model["blocks"][0]["of"][0]["layers"]
        for override in entry.get("overrides", []):
            place, value = override.removeprefix("model.blocks.0.of.0.layers.0").split("=", 1)
            layers[0] = {**layers[0], place[1:]: value} if place else yaml.safe_load(value)
        sizes[name] = layers[0]["kind"], layers[0].get("init", "")
        parse_model({**model, "d_model": 8, "vocab_size": 11}).build()
    assert sizes == {"legs": ("linear_ssm", "legs"), "random": ("linear_ssm", "random"), "s4": ("s4", ""),
                     "s4d": ("s4d", "legs")}
