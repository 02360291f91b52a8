"""What every registered optimiser does, whatever its equations: each example of each kind is tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.core.model import Model, built_model
from weft.core.registry import REGISTRY
from weft.training import parse_run
from weft.training.averages import optimizer_tensors, restore_optimizer
from weft.training.optimizers import OptimizerConfig, set_lr
from weft.training.parameter_groups import GroupSettings, labelled

MODEL: dict[str, Any] = {
    "kind": "decoder", "d_model": 4, "context": 4, "vocab_size": 7, "norm": "layernorm",
    "readout": {"kind": "linear", "tied": False},
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}]},
               {"kind": "pre", "layers": [{"kind": "s4d", "d_state": 4}, "mlp"]}]}
EXAMPLES = [pytest.param(example, id=f"{part.kind}-{index}") for part in REGISTRY.parts("optimizer")
            for index, example in enumerate(part.examples())]


def model_of() -> Model:
    """The same small model each time."""
    torch.manual_seed(0)
    return built_model(parse_run({"model": MODEL}).model)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, lr: float = 0.01) -> None:
    """Steps with gradients and rates that depend on the step alone."""
    for step in range(first, last):
        set_lr(optimizer, lr / (1 + step))
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        optimizer.step()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def moved(config: OptimizerConfig, count: int = 1) -> dict[str, Tensor]:
    """By how much every parameter moves in the first steps."""
    model = model_of()
    before = weights(model)
    steps(model, config.create(model), 0, count, config.lr)
    return {name: after - before[name] for name, after in weights(model).items()}


@pytest.mark.parametrize("config", EXAMPLES)
def test_resumed_twice_it_ends_in_the_same_weights_and_state(config: OptimizerConfig) -> None:
    whole = model_of()
    optimizer = config.create(whole)
    steps(whole, optimizer, 0, 6)
    pieces = model_of()
    kept: dict[str, Tensor] = {}
    for first in (0, 2, 4):
        resumed = config.create(pieces)
        restore_optimizer(resumed, pieces, kept, where="a test")
        steps(pieces, resumed, first, first + 2)
        kept = {name: tensor.clone() for name, tensor in optimizer_tensors(resumed, pieces).items()}
    found, wanted = weights(pieces), weights(whole)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    state = optimizer_tensors(optimizer, whole)
    assert state.keys() == kept.keys() and all(torch.equal(state[name], kept[name]) for name in state)


@pytest.mark.parametrize("config", EXAMPLES)
def test_every_parameter_moves_and_the_loss_falls(config: OptimizerConfig) -> None:
    """From a matrix to another one and from a vector to another one, in the mean square."""
    assert all(bool((by != 0).any()) for by in moved(config).values())
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    inputs, targets = torch.randn(32, 6), torch.randn(32, 4)
    optimizer = config.create(model)
    losses = []
    for step in range(60):
        set_lr(optimizer, config.lr * (1 - step / 60))
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("config", EXAMPLES)
def test_a_parameter_without_a_gradient_stays_where_it_is(config: OptimizerConfig) -> None:
    model = model_of()
    before, optimizer = weights(model), config.create(model)
    names = [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        parameter.grad = None if name in names[::2] else torch.ones_like(parameter)
    optimizer.step()
    after = weights(model)
    assert all(torch.equal(before[name], after[name]) == (name in names[::2]) for name in names)


@pytest.mark.parametrize("config", EXAMPLES)
def test_only_matrices_decay(config: OptimizerConfig) -> None:
    """With gradients of zero nothing but the decay moves a parameter; every optimiser here has a ``weight_decay``."""
    model = model_of()
    before, optimizer = weights(model), config.create(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after, decays = weights(model), config.dump()["weight_decay"] > 0
    for each in labelled(model):
        same = torch.equal(before[each.name], after[each.name])
        assert same == (each.kind in ("vectors", "dynamics") or not decays), each.name
        assert same or after[each.name].norm() < before[each.name].norm()


@pytest.mark.parametrize("config", EXAMPLES)
def test_dynamics_have_their_own_factor(config: OptimizerConfig) -> None:
    whole = moved(config.model_copy(update={"dynamics_lr": 1.0}))
    less = moved(config.model_copy(update={"dynamics_lr": 0.25}))
    for each in labelled(model_of()):
        factor = 0.25 if each.kind == "dynamics" else 1.0
        # A step is the difference of rounded weights.
        torch.testing.assert_close(less[each.name], factor * whole[each.name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("config", EXAMPLES)
def test_groups_give_their_parameters_a_rate_and_a_decay(config: OptimizerConfig) -> None:
    """A rate of zero with no decay stops exactly the parameters of the groups; others move as without groups."""
    groups = [GroupSettings(kinds=["embeddings"], lr=0.0), GroupSettings(names=["stack.layers.0", "*.bias"], lr=0.0)]
    plain, grouped = moved(config), moved(config.model_copy(update={"groups": groups}))
    stopped = {each.name for each in labelled(model_of()) if each.kind == "embeddings"
               or each.name.startswith("stack.layers.0.") or each.name.endswith(".bias")}
    assert len(stopped) > 4
    for name, by in grouped.items():
        assert not by.any() if name in stopped else torch.equal(by, plain[name]), name
