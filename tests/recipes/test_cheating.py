"""The recorded model that cheats: of the configuration that stands here, its page made of it, its claims shown."""

from __future__ import annotations

import json
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import ConfigError
from weft.core.model import built_model, parse_model

RECIPE = Path(__file__).parents[2] / "recipes" / "cheating"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


def test_the_record_is_of_the_configuration_that_stands_here() -> None:
    assert RECORD["configuration_sha256"] == MAKE["configuration_sha256"](), "run recipes/cheating/run.py"
    assert [run["seed"] for run in RECORD["runs"]["off"]] == [0, 1, 2]


def test_the_page_is_made_of_the_record() -> None:
    text = MAKE["page"](RECORD)
    assert (RECIPE / "README.md").read_text(encoding="utf-8") == text
    for name in ("off", "causal"):
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert f"| {statistics.mean(run['seen'] for run in RECORD['runs'][name]):.3f} (" in row
    assert all((RECIPE / name).is_file() for name in ("training.svg", "attention.svg"))


def test_without_its_mask_the_loss_is_near_zero_and_says_nothing() -> None:
    off, causal = RECORD["runs"]["off"], RECORD["runs"]["causal"]
    assert max(run["curve"][-1][1] for run in off) < 0.02 < 0.5 < min(run["curve"][-1][1] for run in causal)
    assert max(run["seen"] for run in off) < 0.2 < 1.5 < min(run["seen"] for run in causal)
    assert min(run["unseen"] for run in off) > max(run["unseen"] for run in causal)
    assert min(run["ahead"] for run in off) > 0.8 and max(run["ahead"] for run in causal) == 0.0
    assert off[0]["curve"][0][1] > 5.0


def test_a_short_run_goes_the_same_way() -> None:
    """Sixty steps of each: the model without its mask is already far ahead."""
    _, held_out = MAKE["parts"]()
    size = MAKE["Size"](steps=60)
    off, causal = (MAKE["measured"](MAKE["trained"](mask, 0, size)[0], held_out)
                   for mask in ("bidirectional", "causal"))
    assert off["seen"] < causal["seen"] - 0.5
    assert off["unseen"] > causal["unseen"] - 0.2


def test_a_decoder_refuses_such_a_mask() -> None:
    plain = MAKE["configuration"]("bidirectional") | {"kind": "decoder"}
    with pytest.raises(ConfigError, match=r"lets a token see later ones\. A decoder predicts the next token"):
        built_model(parse_model({key: value for key, value in plain.items() if key != "head"}))
