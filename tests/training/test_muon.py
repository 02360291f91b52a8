"""Muon against its equations on singular values, against torch's, and in which parameters it moves how."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from training.tiny_runs import ATTENTION
from weft.core.errors import ConfigError
from weft.core.model import built_model, parse_model
from weft.training import parse_run
from weft.training.muon import Muon, MuonConfig, orthogonalised
from weft.training.optimizers import AdamWConfig, set_lr
from weft.training.parameter_groups import labelled
from weft.training.requirements import require_trainable


def polynomial(s: np.ndarray, iterations: int) -> np.ndarray:
    """What the iteration makes of singular values s of a matrix."""
    s = s / np.sqrt((s * s).sum())
    for _ in range(iterations):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)])
@pytest.mark.parametrize("iterations", [1, 5])
def test_the_iteration_acts_on_the_singular_values_alone(shape: tuple[int, int], iterations: int) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    u, s, vt = np.linalg.svd(matrix.numpy(), full_matrices=False)
    np.testing.assert_allclose(orthogonalised(matrix, iterations), u @ np.diag(polynomial(s, iterations)) @ vt,
                               rtol=0, atol=1e-12)


def test_five_iterations_bring_singular_values_near_one() -> None:
    torch.manual_seed(0)
    found = torch.linalg.svdvals(orthogonalised(torch.randn(16, 64), 5))
    assert 0.6 < found.min() < found.max() < 1.25


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert torch.equal(orthogonalised(torch.zeros(3, 2), 5), torch.zeros(3, 2))


def descended(config: MuonConfig | AdamWConfig, rates: tuple[float, ...]) -> list[np.ndarray]:
    """A tall matrix, a wide one and a bias in float64 after steps of given rates, with the same gradients each time."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2, bias=False)).double()
    optimizer = config.create(model)
    generator = torch.Generator().manual_seed(2)
    for rate in rates:
        set_lr(optimizer, rate)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


def reference(config: MuonConfig, rates: tuple[float, ...]) -> list[np.ndarray]:
    """The matrices by the equations of the configuration, through the singular values."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2, bias=False)).double()
    generator = torch.Generator().manual_seed(2)
    found = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    averages: list[Any] = [0.0] * len(found)
    for rate in rates:
        for index, w in enumerate(found):
            g = torch.randn(w.shape, generator=generator, dtype=torch.float64).numpy()
            if w.ndim == 2:
                averages[index] = config.momentum * averages[index] + (1 - config.momentum) * g
                ahead = config.momentum * averages[index] + (1 - config.momentum) * g if config.nesterov else averages[
                    index]
                u, s, vt = np.linalg.svd(ahead, full_matrices=False)
                rows, columns = w.shape
                scale = (0.2 * math.sqrt(max(rows, columns)) if config.update_scale == "rms"
                         else math.sqrt(rows / columns) if rows > columns else 1.0)
                x = u @ np.diag(polynomial(s, config.iterations)) @ vt
                found[index] = w - rate * config.weight_decay * w - rate * scale * x
    return found


RATES = (0.1, 0.5, 0.02)


@pytest.mark.parametrize("config", [
    MuonConfig(), MuonConfig(update_scale="rms", momentum=0.8, nesterov=False, iterations=3, weight_decay=0.3)])
def test_values_of_several_steps(config: MuonConfig) -> None:
    found, wanted = descended(config, RATES), reference(config, RATES)
    for index in (0, 2):
        np.testing.assert_allclose(found[index], wanted[index], rtol=0, atol=1e-12)


def test_everything_else_moves_as_by_adamw() -> None:
    muon = MuonConfig(lr=0.1, adamw_lr=0.03, beta1=0.8, beta2=0.9, weight_decay=0.5)
    rates = tuple(0.3 * rate for rate in RATES)
    found, wanted = descended(muon, RATES), descended(AdamWConfig(beta1=0.8, beta2=0.9), rates)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-12)


@pytest.mark.parametrize("scale", ["jordan", "rms"])
def test_updates_are_those_of_torch(scale: str) -> None:
    """torch computes the iteration in bfloat16, so an update with entries near 1 is off by a few times 2^-8."""
    torch.manual_seed(0)
    ours, theirs = (nn.Linear(7, 12, bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    config = MuonConfig.model_validate({"lr": 0.5, "update_scale": scale})
    optimizers = (config.create(ours), torch.optim.Muon(theirs.parameters(), lr=0.5, weight_decay=0.1,
                  adjust_lr_fn={"jordan": "original", "rms": "match_rms_adamw"}[scale]))
    for _ in range(3):
        gradient = torch.randn(12, 7)
        for linear, optimizer in zip((ours, theirs), optimizers, strict=True):
            linear.weight.grad = gradient.clone()
            optimizer.step()
    moved = (ours.weight - theirs.weight).norm() / theirs.weight.norm()
    assert 0 < moved < 0.02


MIXED: dict[str, Any] = {
    "kind": "decoder", "d_model": 12, "context": 8, "position": "learned",
    "readout": {"kind": "linear", "tied": False, "bias": True},
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "t5"}, "mlp"]},
               {"kind": "pre", "layers": ["lstm", "s4d", {"kind": "gated_convolution"}]},
               {"kind": "pre", "layers": ["rwkv5"]}]}


def test_which_parameters_are_what() -> None:
    model = parse_run({"model": MIXED}).model.build()
    found = {each.name: each for each in labelled(model)}
    assert set(found) == {name for name, _ in model.named_parameters()}
    kinds = {kind: {name for name, each in found.items() if each.kind == kind} for kind in (
        "embeddings", "readouts", "dynamics")}
    assert {name for name in kinds["embeddings"] if "table" in name or "tokens" in name} == kinds["embeddings"]
    assert len(kinds["embeddings"]) == 3 and len(kinds["readouts"]) == 1  # tokens, positions, t5; the readout
    assert kinds["dynamics"] and not any(found[name].hidden for name in kinds["dynamics"])
    hidden = {name for name, each in found.items() if each.hidden}
    assert all(found[name].parameter.dim() == 2 and name.endswith(".weight") for name in hidden)
    for wanted in ("0.layers.0", "0.layers.1", "1.layers.0", "1.layers.1", "2.layers.0"):
        assert any(f"stack.layers.{wanted}." in name for name in hidden), wanted
    tables = {name for name, each in found.items() if each.kind == "matrices" and not each.hidden}
    assert any(name.endswith("recurrent_weight") for name in tables)
    assert all(each.parameter.dim() < 2 for each in found.values() if each.kind == "vectors")
    assert not hidden & (kinds["embeddings"] | kinds["readouts"]) and not any("norm" in name for name in hidden)


def test_matrices_have_a_momentum_and_the_rest_adams_moments() -> None:
    model = parse_run({"model": ATTENTION}).model.build()
    optimizer = MuonConfig().create(model)
    assert isinstance(optimizer, Muon)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for each in labelled(model):
        wanted = {"momentum_buffer"} if each.hidden else {"step", "exp_avg", "exp_avg_sq"}
        assert set(optimizer.state[each.parameter]) == wanted, each.name


def test_a_model_without_hidden_matrices_is_refused() -> None:
    run = parse_run({"model": ATTENTION, "training": {"steps": 1, "optimizer": "muon"}})
    model = run.model.build()
    for each in list(labelled(model)):
        each.parameter.requires_grad_(not each.hidden)
    with pytest.raises(ConfigError, match=r"training\.optimizer\.kind: muon, and this model trains no matrix of a "
                                          r"hidden linear map\. Use adamw\."):
        require_trainable(run, model)


def test_by_default_a_readout_learns_how_often_tokens_occur() -> None:
    """512 tokens drawn by Zipf's law, which embeddings and readout alone can tell apart, for 60 steps. Of the way from
    a uniform guess to the entropy 0.12 is left; with a tenth of the rate 0.73, with AdamW's defaults 0.55."""
    torch.manual_seed(0)
    model: Any = built_model(parse_model({
        "kind": "decoder", "vocab_size": 512, "d_model": 16, "context": 16, "norm": "layernorm",
        "blocks": [{"kind": "pre", "layers": ["mlp"]}]}))
    share = 1 / torch.arange(1.0, 513)
    share /= share.sum()
    generator = torch.Generator().manual_seed(1)
    config = MuonConfig()
    optimizer = config.create(model)
    set_lr(optimizer, config.lr)
    losses = []
    for _ in range(64):
        tokens = torch.multinomial(share, 8 * 17, replacement=True, generator=generator).view(8, 17)
        loss = -model.readout.log_prob(model.hidden(tokens[:, :-1]).y, tokens[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    entropy = float(-(share * share.log()).sum())
    assert (np.mean(losses[60:]) - entropy) / (math.log(512) - entropy) < 0.4
