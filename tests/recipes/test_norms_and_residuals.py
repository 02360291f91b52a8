"""The recorded study of norms, residual connections and scaled scores: its page made of it, its claims shown."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from weft.core.declarations import Trait
from weft.core.layer import traits_of

RECIPE = Path(__file__).parents[2] / "recipes" / "norms_and_residuals"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
PAGE: dict[str, Any] = runpy.run_path(str(RECIPE / "page.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))
mean = PAGE["mean"]


def test_the_record_is_of_the_settings_that_stand_here() -> None:
    assert RECORD["settings_sha256"] == MAKE["settings_sha256"](), "run recipes/norms_and_residuals/run.py"
    assert RECORD["single_bytes"] == pytest.approx(MAKE["single_bytes"](), abs=1e-6)  # one sum in float32
    assert {run["seed"] for kind in ("norms", "depths", "keys") for run in RECORD[kind]} == {0, 1, 2}


def test_the_page_and_the_pictures_are_made_of_the_record() -> None:
    assert (RECIPE / "README.md").read_text(encoding="utf-8") == PAGE["page"](RECORD)
    for figure in PAGE["pictures"](RECORD):
        assert (RECIPE / f"{figure.name}.svg").read_text(encoding="utf-8") == figure.alone(), figure.name


def test_batch_normalisation_is_behind_at_every_batch_and_leaks() -> None:
    for rows in MAKE["BATCHES"]:
        for lengths in MAKE["LENGTHS"]:
            batch, layer = (mean(RECORD["norms"], "held_out", norm=norm, rows=rows, lengths=lengths)
                            for norm in MAKE["NORMS"])
            assert batch > layer + 0.1, (rows, lengths)
    assert min(PAGE["values"](RECORD["norms"], "leak", norm="batchnorm")) > 0.05
    assert max(PAGE["values"](RECORD["norms"], "leak", norm="layernorm")) == 0


def test_without_residual_connections_depth_costs_what_a_context_gives() -> None:
    """The deep models without them are no better than the frequencies of single bytes; those with them are."""
    for depth in (8, 24):
        on, off = (mean(RECORD["depths"], "held_out", depth=depth, residual=residual) for residual in (True, False))
        assert on < RECORD["single_bytes"] - 0.5 and off > RECORD["single_bytes"] - 0.05
    first = [run["gradients"] for run in RECORD["depths"] if run["residual"] and run["depth"] == 24]
    assert all(each[0] == max(each) for each in first)


def test_unscaled_scores_are_the_more_peaked_the_larger_the_keys() -> None:
    unscaled, scaled = ([mean(RECORD["keys"], "entropy", d_key=d_key, scaled=on) for d_key in MAKE["KEY_SIZES"]]
                        for on in (False, True))
    assert unscaled == sorted(unscaled, reverse=True) and unscaled[0] > 0.6 and unscaled[-1] < 0.1
    assert max(scaled) - min(scaled) < 0.05 and min(scaled) > 0.8


def test_a_short_run_shows_the_same() -> None:
    for norm, leaks in (("batchnorm", True), ("layernorm", False)):
        model = MAKE["built"](0, norm=norm)
        assert (Trait.BATCH_STATISTICS in traits_of(model)) is leaks
        curve = MAKE["train"](model, 15, 4, "unequal")
        assert curve[-1] < curve[0] - 0.5
        assert (MAKE["leak"](model) > 0.01) is leaks
    assert len(MAKE["gradient_norms"](MAKE["built"](0, depth=3, residual=False))) == 3
    peaked, flat = (MAKE["drawn_weights"](0, 64, scaled)["entropy"] for scaled in (False, True))
    assert peaked < flat / 3
