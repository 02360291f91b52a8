"""Gradual unfreezing: which blocks train in which step, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training.tiny_runs import tiny_run
from weft.core.errors import ConfigError
from weft.training import RunConfig
from weft.training.material import prepare
from weft.training.requirements import require_trainable
from weft.training.run_training import build_model
from weft.training.trainer import Trainer
from weft.training.unfreezing import UnfreezeSettings

MODEL: dict[str, Any] = {"kind": "decoder", "d_model": 4, "context": 8, "norm": "layernorm",
                         "blocks": [{"kind": "pre", "layers": ["mlp"]}] * 3}


@pytest.mark.parametrize(("settings", "steps", "reached"), [
    (UnfreezeSettings(), 16, [0, 0, 1, 1, 2, 2, 3, 3] + [4] * 8),
    (UnfreezeSettings(last_blocks=2), 8, [2, 2, 3, 3, 4, 4, 4, 4]),
    (UnfreezeSettings(until=0.25), 16, [0, 1, 2, 3] + [4] * 12),
    (UnfreezeSettings(until=0.1), 4, [0, 4, 4, 4]),
])
def test_depths_reached_in_a_model_of_three_blocks(settings: UnfreezeSettings, steps: int, reached: list[int]) -> None:
    assert [settings.reached(step, steps, 3) for step in range(steps)] == reached


def trainer_of(run: RunConfig, steps: int) -> Trainer:
    torch.manual_seed(0)
    return Trainer(run, build_model(run), prepare(run).train, steps=steps, device="cpu")


def moving(trainer: Trainer) -> set[str]:
    """The parts whose weights the next step changes."""
    before: dict[str, Tensor] = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.advance()
    changed = [name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)]
    return {".".join(name.split(".")[:3]) if name.startswith("stack") else name.split(".")[0] for name in changed}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_more_block_at_a_time_from_the_last_to_the_embeddings(tmp_path: Path, dtype: str) -> None:
    """Of eight steps four; weight decay and momentum do not move what is frozen either."""
    trainer = trainer_of(tiny_run(tmp_path, MODEL, dtype=dtype, unfreeze={"until": 0.5}), 8)
    wanted = {"norm"}
    for further in (None, "stack.layers.2", "stack.layers.1", "stack.layers.0", "embedding"):
        wanted |= {further} if further else set()
        assert moving(trainer) == wanted
        assert all(parameter.requires_grad for parameter in trainer.model.parameters())


def test_steps_with_everything_are_those_of_a_run_without(tmp_path: Path) -> None:
    """The gradients of what trains do not depend on what is frozen: the first step moves the norm as ever."""
    plain, gradual = (trainer_of(tiny_run(tmp_path, MODEL, clip_norm=None, **training), 8)
                      for training in ({}, {"unfreeze": {}}))
    losses = [trainer.advance().sums.loss for trainer in (plain, gradual)]
    assert losses[0] == losses[1]
    norms = [dict(trainer.model.named_parameters())["norm.weight"] for trainer in (plain, gradual)]
    assert torch.equal(*norms)


PROBLEMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no blocks": ({"kind": "feedforward", "order": 3}, {"unfreeze": {}},
                  r"training\.unfreeze: this model has no blocks\. Leave it out\."),
    "too many blocks": (MODEL, {"unfreeze": {"last_blocks": 4}},
                        r"training\.unfreeze\.last_blocks: 4, and the model has 3\. Lower it\."),
    "nothing above the blocks": ({**MODEL, "norm": "none"}, {"unfreeze": {}},
                                 r"training\.unfreeze\.last_blocks: 0, with which no parameter trains in the first "
                                 r"step\. Raise it, or give the model a head or a last norm\."),
    "compiled": (MODEL, {"unfreeze": {}, "compute": {"compile": True}},
                 r"training\.compute\.compile: true, with training\.unfreeze: .* Leave out one of them\."),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_be_unfrozen_is_told(tmp_path: Path, name: str) -> None:
    model, training, message = PROBLEMS[name]
    run = tiny_run(tmp_path, model, **training)
    with pytest.raises(ConfigError, match=message):
        require_trainable(run, build_model(run))


def test_a_budget_of_time_is_measured_with_everything_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.training import budget

    made: list[RunConfig] = []

    def noted(config: RunConfig, *args: Any, **options: Any) -> Trainer:
        made.append(config)
        return Trainer(config, *args, **options)

    monkeypatch.setattr(budget, "Trainer", noted)
    run = tiny_run(tmp_path, MODEL, steps=None, seconds=0.05, unfreeze={})
    assert budget.settle_steps(run, build_model(run), prepare(run).train, "cpu") >= 1
    assert [config.training.unfreeze for config in made] == [None]
