"""Rates and decays by kind, name and depth, and what is said of groups that hold nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from training.test_every_optimizer import MODEL
from training.tiny_runs import tiny_run
from weft.core.errors import ConfigError
from weft.core.model import Model
from weft.training import RunConfig, parse_run, train
from weft.training.optimizers import AdamWConfig
from weft.training.parameter_groups import depths, labelled
from weft.training.requirements import require_trainable


def run_of(optimizer: dict[str, Any], model: dict[str, Any] = MODEL) -> RunConfig:
    return parse_run({"model": {**model, "vocab_size": 257}, "training": {"optimizer": optimizer}})


def settings_of(run: RunConfig) -> dict[str, tuple[float, float]]:
    """The rate at the peak and the decay of every parameter."""
    model = run.model.build()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = run.training.optimizer.create(model).param_groups
    return {names[id(p)]: (run.training.optimizer.lr * group["factor"], group["weight_decay"])
            for group in groups for p in group["params"]}


def test_the_first_group_that_holds_a_parameter_counts() -> None:
    run = run_of({"lr": 0.1, "weight_decay": 0.5, "dynamics_lr": 0.5, "groups": [
        {"names": ["layers.0.*.weight"], "kinds": ["matrices"], "lr": 0.2},
        {"names": ["stack.layers.0"], "weight_decay": 0.25},
        {"kinds": ["readouts"], "lr": 0.3, "weight_decay": 0.0},
        {"kinds": ["dynamics"], "lr": 0.4}]})
    found = settings_of(run)
    kinds = {each.name: each.kind for each in labelled(run.model.build())}
    seen = set()
    for name, (lr, decay) in found.items():
        plain = 0.0 if kinds[name] in ("vectors", "dynamics") else 0.5
        if kinds[name] == "matrices" and ".layers.0." in name and name.endswith(".weight"):
            wanted = (0.2, 0.5)
        elif name.startswith("stack.layers.0."):
            wanted = (0.1, 0.25)  # vectors too
        else:
            wanted = {"readouts": (0.3, 0.0), "dynamics": (0.4, 0.0)}.get(kinds[name], (0.1, plain))
        assert (lr, decay) == pytest.approx(wanted), name
        seen.add(wanted)
    assert len(seen) == 6


def test_rates_fall_by_a_factor_from_block_to_block() -> None:
    for name, (lr, _) in settings_of(run_of({"lr": 0.1, "layer_decay": 0.5})).items():
        power = (1 if name.startswith("stack.layers.1.") else 2 if name.startswith("stack.layers.0.")
                 else 3 if "tokens" in name else 0)
        assert lr == pytest.approx(0.1 * 0.5**power), name


def test_depths_of_two_stacks_shared_blocks_and_what_lies_before_them() -> None:
    blocks = [{"repeat": 2, "of": [{"kind": "pre", "layers": ["mlp"]}]}]
    model = run_of({}, {"kind": "decoder", "d_model": 4, "context": 4, "shared": {"f": "mlp"}, "position": "learned",
                        "embedding": {"norm": "layernorm"}, "norm": "layernorm",
                        "blocks": [{"kind": "pre", "layers": [{"shared": "f"}]}, *blocks]}).model.build()
    found, names = depths(model), {name: id(p) for name, p in model.named_parameters()}
    assert {found.get(names[name]) for name in names if name.startswith("embedding.")} == {4}
    assert {found.get(names[name]) for name in names if name.startswith("norm.")} == {None}
    shared = [name for name in names if not name.startswith(("embedding.", "norm.", "stack.", "readout."))]
    assert shared and {found[names[name]] for name in shared} == {3}


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "a pattern that matches nothing": (
        {"groups": [{"names": ["readout", "qvk"], "lr": 1.0}]},
        r"training\.optimizer\.groups\.0\.names\.1: 'qvk' matches no parameter that trains\. Did you mean 'qkv'\?"),
    "a kind that is not there": (
        {"groups": [{"kinds": ["dynamics"], "lr": 1.0}]},
        r"training\.optimizer\.groups\.0\.kinds\.0: no parameter that trains is one of the dynamics\. Leave it out\."),
    "a group behind one that holds all": (
        {"groups": [{"names": ["*"], "lr": 1.0}, {"kinds": ["vectors"], "lr": 2.0}]},
        r"training\.optimizer\.groups\.1: it holds no parameter that an earlier group does not hold\. Change it"),
    "a model without blocks": (
        {"layer_decay": 0.5}, r"training\.optimizer\.layer_decay: 0\.5, and this model has no blocks\. Leave it out\."),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_groups_that_hold_nothing_are_told(name: str) -> None:
    optimizer, message = PROBLEMS[name]
    model: dict[str, Any] = {"kind": "feedforward", "order": 3} if "blocks" in name else {
        **MODEL, "blocks": [MODEL["blocks"][0]]}
    run = run_of(optimizer, model)
    with pytest.raises(ConfigError, match=message):
        require_trainable(run, run.model.build())


def test_every_problem_is_told_before_a_run_folder_is_made(tmp_path: Any) -> None:
    run = tiny_run(tmp_path, {**MODEL, "vocab_size": 257}, optimizer={"groups": [
        {"names": ["nothing", "stack.layers.7"], "weight_decay": 0.0}]})
    with pytest.raises(ConfigError, match=r"2 problems in the configuration"):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("group", "message"), [
    ({"lr": 1.0}, "a group without kinds and names. Say which parameters it holds."),
    ({"names": ["norm"]}, "a group without lr and weight_decay. Give one of them, or leave the group out."),
    ({"kinds": ["tensors"], "lr": 1.0}, "training.optimizer.groups.0.kinds.0"),
    ({"names": [], "lr": 1.0}, "training.optimizer.groups.0.names"),
    ({"names": ["norm"], "lr": -1.0}, "training.optimizer.groups.0.lr"),
])
def test_groups_that_say_nothing_are_refused(group: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of({"groups": [group]})
    assert message in str(caught.value)


def test_parameters_that_do_not_train_are_in_no_group() -> None:
    model: Model = run_of({}).model.build()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    groups = AdamWConfig().create(model).param_groups
    assert sum(len(group["params"]) for group in groups) == sum("norm" in name for name, _ in model.named_parameters())
    assert all(isinstance(p, torch.Tensor) for group in groups for p in group["params"])
