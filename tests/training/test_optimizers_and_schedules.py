"""Optimisers against their equations in NumPy, schedules against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from weft.blocks.residual import PreNormConfig
from weft.core.part_config import Dims
from weft.mixers.s4d import S4D
from weft.training.optimizers import AdamWConfig, OptimizerConfig, SGDConfig, set_lr
from weft.training.schedules import (
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    LinearConfig,
    ScheduleConfig,
    WSDConfig,
)


def descend(config: OptimizerConfig, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix and a bias after steps with the given gradients, from ones."""
    model = nn.Linear(2, 1).double()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    optimizer = config.create(model)
    for g in gradients:
        model.weight.grad = torch.tensor(g).reshape(1, 2)
        model.bias.grad = torch.tensor(g[:1])
        optimizer.step()
    return model.weight.detach().numpy()[0], model.bias.detach().numpy()


GRADIENTS = np.array([[0.5, -2.0], [0.1, 0.3], [-0.7, 1.0]])


def test_adamw_follows_its_equations_and_vectors_do_not_decay() -> None:
    lr, b1, b2, eps, decay = 0.1, 0.8, 0.9, 1e-3, 0.5
    weight, bias = descend(AdamWConfig(lr=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=decay), GRADIENTS)
    for wanted, found, lam in ((np.ones(2), weight, decay), (np.ones(1), bias, 0.0)):
        m, v = np.zeros_like(wanted), np.zeros_like(wanted)
        for t, g in enumerate(GRADIENTS[:, : len(wanted)], start=1):
            wanted = wanted - lr * lam * wanted
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            wanted = wanted - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_follows_its_equations(nesterov: bool) -> None:
    lr, momentum, decay = 0.1, 0.9, 0.2
    weight, _ = descend(SGDConfig(lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=decay), GRADIENTS)
    wanted, u = np.ones(2), np.zeros(2)
    for g in GRADIENTS:
        g = g + decay * wanted
        u = momentum * u + g
        wanted = wanted - lr * (g + momentum * u if nesterov else u)
    np.testing.assert_allclose(weight, wanted, rtol=1e-12)


@pytest.mark.parametrize(("schedule", "step", "factor"), [
    (ConstantConfig(warmup=0.0), 0, 1.0),
    (ConstantConfig(warmup=0.1), 0, 1 / 11),
    (ConstantConfig(warmup=0.1), 9, 10 / 11),
    (ConstantConfig(warmup=0.1), 10, 1.0),
    (CosineConfig(warmup=0.1, final=0.2), 10, 1.0),
    (CosineConfig(warmup=0.1, final=0.2), 55, 0.6),
    (CosineConfig(warmup=0.0, final=0.0), 25, 0.5 + math.sqrt(0.125)),
    (LinearConfig(warmup=0.0, final=0.2), 50, 0.6),
    (LinearConfig(warmup=0.0, final=0.2), 100, 0.2),
    (InverseSqrtConfig(warmup=0.04), 4, 1.0),
    (InverseSqrtConfig(warmup=0.04), 19, 0.5),
    (WSDConfig(warmup=0.1, cooldown=0.2, final=0.0), 80, 1.0),
    (WSDConfig(warmup=0.1, cooldown=0.2, final=0.0), 90, 0.5),
    (WSDConfig(warmup=0.1, cooldown=0.2, final=0.1), 100, 0.1),
])
def test_schedules_at_known_places_of_a_hundred_steps(schedule: ScheduleConfig, step: int, factor: float) -> None:
    assert schedule.factor(step, 100) == pytest.approx(factor, rel=1e-12)


def test_complex_parameters_have_an_optimizer() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.complex128))
    optimizer = AdamWConfig(lr=0.1, weight_decay=0.0).create(model)
    model.weight.grad = torch.full((2, 2), 1j, dtype=torch.complex128)
    optimizer.step()
    # The first step of Adam goes lr against the sign of each real component.
    torch.testing.assert_close(model.weight.detach(), torch.full((2, 2), 1 - 0.1j, dtype=torch.complex128), rtol=1e-6,
                               atol=1e-6)


def test_what_moves_a_state_does_not_decay_and_has_its_own_rate() -> None:
    model = PreNormConfig.model_validate({"layers": [{"kind": "s4d", "d_state": 4}]}).build(Dims(6, 11, 8))
    layer = model.layers[0]
    assert isinstance(layer, S4D)
    optimizer = SGDConfig(lr=0.5, weight_decay=0.25, dynamics_lr=0.1).create(model)
    decays = {id(p): (group["weight_decay"], group["factor"]) for group in optimizer.param_groups
              for p in group["params"]}
    assert len(decays) == len(list(model.parameters()))
    assert {decays[id(p)] for p in (layer.log_dt, layer.log_decay, layer.frequency, layer.b)} == {(0.0, 0.1)}
    assert {decays[id(p)] for p in (layer.c, layer.mix.weight)} == {(0.25, 1.0)}
    assert {decays[id(p)] for p in (layer.skip, layer.mix.bias)} == {(0.0, 1.0)}
    set_lr(optimizer, 0.4)
    before = [p.detach().clone() for p in (layer.log_decay, layer.mix.bias)]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    torch.testing.assert_close(layer.log_decay.detach(), before[0] - 0.04)
    torch.testing.assert_close(layer.mix.bias.detach(), before[1] - 0.4)


def test_an_optimizer_without_groups_of_its_own_gets_the_rate_as_it_is() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    set_lr(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] == 0.25
