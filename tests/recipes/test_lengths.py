"""The record of the study of lengths, and the page that is made of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "lengths"
RESULT = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Any, Any]]:
    """The recipe's modules."""
    sys.path.insert(0, str(RECIPE))
    yield import_module("run"), import_module("page")
    sys.path.remove(str(RECIPE))
    for name in ("run", "page"):
        sys.modules.pop(name)


def test_the_record_is_of_what_stands_here(made: tuple[Any, Any]) -> None:
    run, page = made
    made_of = {scheme: each["settings_sha256"] for scheme, each in RESULT["made"].items()}
    assert made_of == {scheme: run.settings_sha256(scheme) for scheme in run.SCHEMES}, (
        "the recipe has changed; run recipes/lengths/run.py, which runs the schemes that have")
    before = (RECIPE / "README.md").read_text(encoding="utf-8")
    assert page.page(before, RESULT) == before, "run recipes/lengths/run.py without a folder"
    for figure in page.pictures(RESULT):
        assert (RECIPE / f"{figure.name}.svg").read_text(encoding="utf-8") == figure.alone()


def test_alibi_alone_is_no_worse_at_sixteen_times_the_length(made: tuple[Any, Any]) -> None:
    """Of the recorded figures, seed by seed: learned positions are refused beyond their table, the others worsen."""
    for name, seeds in RESULT["models"].items():
        for found in seeds.values():
            short, long = (found["trained"][length].get("perplexity") for length in ("128", "2048"))
            assert long is None if name == "learned" else (long < 1.005 * short) == (name == "alibi")


def test_training_further_improves_every_extension(made: tuple[Any, Any]) -> None:
    for found in RESULT["models"]["rope"].values():
        for method in made[0].METHODS:
            rescaled, tuned = (found[method][stage]["1024"]["perplexity"] for stage in ("rescaled", "tuned"))
            assert tuned < rescaled < found["trained"]["2048"]["perplexity"] or method == "linear"
            assert tuned < rescaled


def test_t5s_bias_at_its_default_is_ahead_of_no_positions_where_it_was_trained_and_behind_them_far_beyond() -> None:
    """In every seed; with undivided scores it was behind at both lengths."""
    none, t5 = ([found["trained"] for found in RESULT["models"][name].values()] for name in ("none", "t5"))
    for without, biased in zip(none, t5, strict=True):
        assert biased["128"]["perplexity"] < without["128"]["perplexity"] - 2
        assert biased["2048"]["perplexity"] > without["2048"]["perplexity"]
