"""Runs in which some parameters train: which, what the others have, and patterns that reach nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights, tiny_run
from weft.checkpoints.load import read_training
from weft.core.errors import ConfigError
from weft.training import parse_run, train
from weft.training.material import prepare
from weft.training.parameter_groups import only_trained
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

MODEL: dict[str, Any] = {
    "kind": "decoder", "d_model": 12, "context": 8, "readout": {"kind": "linear", "tied": True},
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, "mlp"]}] * 2,
    "norm": "layernorm"}
PATTERNS = {"norm": ["norm"], "kind": ["vectors"], "layer and name": ["stack.layers.1.*.qkv", "readout"],
            "all": ["stack", "embedding", "norm"]}
"""The readout is tied to the embeddings, whose first name is another."""


def trained_names(patterns: list[str]) -> set[str]:
    made = only_trained(parse_run({"model": {**MODEL, "vocab_size": 9}}).model.build(), patterns)
    return {name for name, parameter in made.named_parameters() if parameter.requires_grad}


def test_patterns_reach_names_kinds_and_tied_parameters() -> None:
    every = {name for name, _ in parse_run({"model": {**MODEL, "vocab_size": 9}}).model.build().named_parameters()}
    assert trained_names(PATTERNS["all"]) == every and "embedding.tokens.weight" in every
    assert trained_names(["readout"]) == trained_names(["embeddings"]) == {"embedding.tokens.weight"}
    matrices = trained_names(["matrices"])
    assert matrices and all("stack" in name and name.endswith("weight") for name in matrices)
    assert trained_names(["matrices", "vectors", "embeddings"]) == every
    assert trained_names(["stack.layers.1"]) == {name for name in every if name.startswith("stack.layers.1.")} != set()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_frozen_keeps_its_bits_and_has_no_gradient_and_no_state(tmp_path: Path, dtype: str) -> None:
    """And what trains gets the gradients that it gets in a model that trains whole."""
    run = tiny_run(tmp_path, MODEL, train=["stack.layers.1", "norm"], dtype=dtype, clip_norm=None, steps=6)
    whole = parse_run(run.dump(), ["training.train=null"])
    torch.manual_seed(run.seed)
    before = build_model(run)
    examples = prepare(run).train
    trainers = []
    for config in (run, whole):
        torch.manual_seed(run.seed)
        trainers.append(Trainer(config, build_model(config), examples, steps=6, device="cpu"))
        trainers[-1].advance()
    part, all_ = (dict(trainer.model.named_parameters()) for trainer in trainers)
    moving = {name for name in part if name.startswith(("stack.layers.1.", "norm."))}
    for name, parameter in part.items():
        assert (parameter.grad is not None) == (name in moving)
        if name in moving:
            assert parameter.grad is not None and all_[name].grad is not None
            assert torch.equal(parameter.grad, all_[name].grad), name
    assert moving and {key.split("/")[0] for key in trainers[0].tensors() if key.startswith("optimizer.")} == {
        f"optimizer.{name}" for name in moving}
    made = train(run, tmp_path / "run")
    for (name, old), new in zip(before.named_parameters(), made.model.parameters(), strict=True):
        assert torch.equal(old, new) == (name not in moving), name
    saved = read_training(made.checkpoint)
    assert not any("embedding" in name for name in saved)


def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, MODEL, train=["norm", "stack.layers.1"], steps=6)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 5)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation


def test_the_plan_shows_what_trains(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(repr({"model": {**MODEL, "vocab_size": 9}, "training": {"train": ["norm"]}}).replace(
        "True", "true"))
    found = weft.plan(path)
    every = sum(p.numel() for p in parse_run({"model": {**MODEL, "vocab_size": 9}}).model.build().parameters())
    assert (found.parameters.trained, found.parameters.total) == (2 * 12, every)
    assert found.training is not None and found.training.optimizer == 2 * 4 * 24
    assert found.weights["float32"] == 4 * every


@pytest.mark.parametrize(("patterns", "message"), [
    (["nrom"], "training.train.0: 'nrom' matches no parameter that trains. Did you mean 'norm'?"),
    (["norm", "dynamics"], "training.train.1: no parameter that trains is one of the dynamics. Leave it out."),
    ([], "training.train: List should have at least 1 item"),
])
def test_patterns_that_reach_nothing_are_refused(tmp_path: Path, patterns: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(tiny_run(tmp_path, MODEL, train=patterns), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_counted_has_nothing_to_train(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.train\.0: 'x', and this model has no parameter that trains"):
        train(tiny_run(tmp_path, {"kind": "ngram", "order": 2}, train=["x"]), tmp_path / "run")


def test_a_new_head_is_trained_on_a_frozen_language_model(tmp_path: Path) -> None:
    """A decoder that was trained on text begins a task on values; its own weights keep their bits."""
    before = train(tiny_run(tmp_path, MODEL, steps=2), tmp_path / "text")
    rows = [{"text": f"{'a' * (i % 5)} {i}", "value": i % 5} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = parse_run({"start": str(tmp_path / "text"), "task": "regression",
                     "model": {"head": {"kind": "pooled", "pool": "last"}},
                     "data": {"path": str(tmp_path / "rows.jsonl")},
                     "training": {"steps": 3, "batch_size": 4, "train": ["head"], "compute": {"matmul": "default"}}})
    made = train(run, tmp_path / "run")
    old = before.model.state_dict()
    for name, tensor in made.model.state_dict().items():
        assert name.startswith("head.") if name not in old else torch.equal(tensor, old[name]), name
    assert made.validation.measures["mean_squared_error"] > 0 and not torch.equal(
        made.model.get_parameter("head.map.bias"), torch.zeros(1))
