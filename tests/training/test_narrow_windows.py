"""A window that is wider than the context of a model hides nothing, and no row has a global token outside of it: both
are refused before a run begins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.core.base_model import built_empty
from weft.core.errors import ConfigError
from weft.training import RunConfig, parse_run
from weft.training.parallel import World
from weft.training.requirements import mask_problems, require_trainable
from weft.training.run_training import train


def run_with(mask: str, *, repeat: int = 1, context: int = 16, **training: Any) -> RunConfig:
    """A run of a decoder whose layers attend by this mask."""
    layer = {"kind": "attention", "n_heads": 2, "mask": mask}
    blocks = [{"repeat": repeat, "of": [{"kind": "pre", "layers": [layer]}]}]
    return parse_run({"model": {"kind": "decoder", "d_model": 8, "context": context, "vocab_size": 300,
                                "blocks": blocks},
                      "data": {"path": "absent.txt"}, "training": {"steps": 1, "batch_size": 1, **training}})


@pytest.mark.parametrize(("mask", "reaches"), [
    ("causal & window(17)", "17"), ("window(17) | (causal & globals)", "17"), ("causal & dilated(6, 4)", "21"),
    ("causal & (window(20) | strided(4))", "20"), ("causal & symmetric_window(3, 16)", "17")])
def test_a_window_past_the_context_is_refused_before_a_folder_is_made(mask: str, reaches: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"reaches {reaches} tokens from the query, and the model's context is 16: "
                                          r"it would hide nothing\. Make it narrower"):
        train(run_with(mask), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mask", ["causal & (window(4) | global(0, 16))", "per_head(causal, causal & global(16))"])
def test_a_global_token_outside_the_context_is_refused_before_a_folder_is_made(mask: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"layers\.0: global\((0, )?16\) names the token 16, which lies outside the "
                                          r"model's context of 16 tokens\. Give indices from 0 to 15, or make"):
        train(run_with(mask), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_layers_of_one_mask_are_named_once() -> None:
    config = run_with("causal & window(32)", repeat=3)
    named = r"stack\.layers\.0\.layers\.0 and 2 other layers: window\(32\) reaches"
    problem, = mask_problems(config, built_empty(config.model))
    assert re.search(named, problem)


@pytest.mark.parametrize("config", [
    run_with("causal & window(16)"), run_with("causal & strided(32)"), run_with("causal & segments(16, 32)"),
    run_with("causal & window(32)", carry_state=True), run_with("causal & window(32)", context=64, steps=1),
    run_with("causal & (window(4) | global(15))"), run_with("causal & (window(4) | global(16))", carry_state=True)],
    ids=["as wide", "a stride", "segments", "carried", "longer", "the last token", "a later token, carried"])
def test_others_are_not(config: RunConfig) -> None:
    assert mask_problems(config, built_empty(config.model)) == []


def test_problems_of_every_rule_are_told_together() -> None:
    """One of the mask, one of settings and one of the batch of several processes."""
    config = run_with("causal & window(32)", batch_size=3, unfreeze={"until": 0.5}, compute={"compile": True})
    with pytest.raises(ConfigError) as caught:
        require_trainable(config, built_empty(config.model), World(torch.device("cpu"), size=2))
    assert {problem.split(":")[0] for problem in caught.value.problems} >= {
        "training.compute.compile", "training.batch_size", "stack.layers.0.layers.0"}
