"""Dense networks against NumPy: layers, ways back, energies; contrastive divergence against all states enumerated."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import randomise, require_agreement
from oracles import activations
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.models.dense import Dense, DenseConfig
from weft.tasks.pretrain_layers import contrastive_divergence

V, H = 4, 3
BASE: dict[str, Any] = {"image": {"height": 2, "width": 2, "pixel_scaling": "none"}, "widths": [H, 2]}
sigmoid: Any = activations.sigmoid


def build(seed: int = 0, **fields: Any) -> Dense:
    found = parse(DenseConfig, {**BASE, **fields}).build().double().eval()
    randomise(found, seed)
    return found


def vectors(rows: int = 2, *, grad: bool = False) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=grad)


def test_its_layers_are_maps_and_activations() -> None:
    net, x = build(activation="tanh"), vectors(grad=True)
    assert [name for name, _ in net.named_parameters()] == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    y = net(EncoderInputs(patches=x[:, None]))[:, 0]
    require_agreement(y, [x, *net.parameters()],
                      lambda x, w, b, w2, b2: np.tanh(np.tanh(x @ w.T + b) @ w2.T + b2))


def test_each_token_is_computed_by_itself() -> None:
    net, x = build(), vectors(5)
    y = net(EncoderInputs(patches=x[None]), Span(count=torch.tensor([3])))
    assert_close(y[0, :3], net(EncoderInputs(patches=x[:3, None]))[:, 0], rtol=1e-12, atol=1e-13)
    assert y[0, 3:].abs().sum() == 0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("output", ["sigmoid", "identity"])
def test_the_way_back_is_the_transpose_or_a_matrix_of_its_own(tied: bool, output: str) -> None:
    net, x = build(activation="tanh", back={"tied": tied, "output": output}), vectors(grad=True)
    units = net.up(1, net.up(0, x))
    below = net.back_function(1, net.back_sum(1, units))
    y = net.back_function(0, net.back_sum(0, below))
    names = [name for name, _ in net.named_parameters()]
    assert ("back.0.weight" in names) is not tied

    def autoencoder(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, *back: Any) -> Any:
        c1, c2 = (back[0], back[1]) if tied else (back[0], back[2])
        back1, back2 = (w1.T, w2.T) if tied else (back[1], back[3])
        z = np.tanh(np.tanh(x @ w1.T + b1) @ w2.T + b2)
        a = np.tanh(z @ back2.T + c2) @ back1.T + c1
        return sigmoid(a) if output == "sigmoid" else a

    require_agreement(y, [x, *net.parameters()], autoencoder)


def states(size: int) -> np.ndarray:
    """Every binary vector."""
    return np.array(list(product([0.0, 1.0], repeat=size)))


def machine(seed: int = 0) -> tuple[Dense, np.ndarray, np.ndarray, np.ndarray]:
    """A restricted Boltzmann machine: the network, W [H,V], units' biases c [H], pixels' biases b [V]."""
    net = build(seed, widths=[H], back={})
    w, c, b = (each.detach().numpy() for each in net.parameters())
    return net, w, c, b


def test_the_free_energy_is_minus_the_log_of_the_sum_over_all_units() -> None:
    net, w, c, b = machine()
    x = states(V)
    energies = -(x @ b)[:, None] - (states(H) @ c)[None] - x @ w.T @ states(H).T
    wanted = -np.log(np.exp(-energies).sum(axis=1))
    np.testing.assert_allclose(net.free_energy(0, torch.from_numpy(x)).detach().numpy(), wanted, rtol=1e-12)


def likelihood_gradient(w: np.ndarray, c: np.ndarray, b: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """The exact gradient of the mean of -log p(x) over rows x, from statistics under all joint states."""
    every_x, every_h = states(V), states(H)
    joint = np.exp((every_x @ b)[:, None] + (every_h @ c)[None] + every_x @ w.T @ every_h.T)
    joint /= joint.sum()
    units = sigmoid(x @ w.T + c)
    model = [np.einsum("vh,hi,vj->ij", joint, every_h, every_x), joint.sum(0) @ every_h, joint.sum(1) @ every_x]
    data = [units.T @ x / len(x), units.mean(0), x.mean(0)]
    return [m - d for m, d in zip(model, data, strict=True)]


def test_the_gradient_of_the_likelihood_is_that_of_free_energies() -> None:
    """F(x) + log Z with Z summed over all pixels, by automatic differentiation, against statistics."""
    net, w, c, b = machine()
    x = torch.from_numpy(states(V)[[1, 6, 6, 11]])
    log_z = torch.logsumexp(-net.free_energy(0, torch.from_numpy(states(V))), 0)
    found = torch.autograd.grad((net.free_energy(0, x) + log_z).mean(), list(net.parameters()))
    for own, wanted in zip(found, likelihood_gradient(w, c, b, x.numpy()), strict=True):
        np.testing.assert_allclose(own.numpy(), wanted, rtol=0, atol=1e-14)


def divergence_gradient(w: np.ndarray, c: np.ndarray, b: np.ndarray, x: np.ndarray, k: int) -> list[np.ndarray]:
    """The expectation of the gradient of contrastive divergence over every sample that Gibbs sampling may draw."""
    every_x, every_h = states(V), states(H)

    def chance(of: np.ndarray, p: np.ndarray) -> np.ndarray:
        """The probability [n,m] of every state in rows of probabilities."""
        return np.prod(np.where(of[None] == 1, p[:, None], 1 - p[:, None]), axis=-1)

    down = chance(every_x, sigmoid(every_h @ w + b))
    once = chance(every_h, sigmoid(every_x @ w.T + c)) @ down
    reached = chance(every_h, sigmoid(x @ w.T + c)) @ down @ np.linalg.matrix_power(once, k - 1)
    after = sigmoid(every_x @ w.T + c)
    model = [np.einsum("nv,vh,vj->hj", reached, after, every_x), reached.sum(0) @ after, reached.sum(0) @ every_x]
    units = sigmoid(x @ w.T + c)
    data = [units.T @ x, units.sum(0), x.sum(0)]
    return [(m - d) / len(x) for m, d in zip(model, data, strict=True)]


@pytest.mark.parametrize("k", [1, 3])
def test_contrastive_divergence_is_its_expectation_on_average(k: int) -> None:
    """Real pixels between 0 and 1 are data too: what is drawn are the states after them. The weights are so large that
    sampling forgets where it began only slowly, and one step more or less would be seen."""
    net, *_ = machine(2)
    with torch.no_grad():
        for parameter, factor in zip(net.parameters(), (8.0, 0.0, 0.0), strict=True):
            parameter.mul_(factor)
    w, c, b = (each.detach().numpy() for each in net.parameters())
    x = np.array([[0.2, 1.0, 0.0, 0.7], [1.0, 0.0, 0.4, 0.0]])
    repeats = 40_000
    torch.manual_seed(0)
    rows = torch.from_numpy(x).repeat(repeats, 1)
    found = torch.autograd.grad(contrastive_divergence(net, 0, rows, k).mean(), list(net.parameters()))
    steps = [divergence_gradient(w, c, b, x, each)[0] for each in (k, k + 1, max(1, k - 1))]
    assert np.abs(steps[0] - steps[1]).max() > 0.02 and (k == 1 or np.abs(steps[0] - steps[2]).max() > 0.02)
    # A mean of 80,000 products of numbers up to 1, each with a deviation of at most 0.5: 0.0018; five of these.
    for own, wanted in zip(found, divergence_gradient(w, c, b, x, k), strict=True):
        np.testing.assert_allclose(own.numpy(), wanted, rtol=0, atol=0.009)


def test_many_steps_of_gibbs_sampling_give_the_gradient_of_the_likelihood() -> None:
    """The expectation after 200 steps is the exact gradient, so the divergence is the likelihood's in the limit."""
    _, w, c, b = machine()
    x = states(V)[[1, 6, 6, 11]]
    for own, wanted in zip(divergence_gradient(w, c, b, x, 200), likelihood_gradient(w, c, b, x), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-12)


def test_no_gradient_flows_through_what_is_drawn() -> None:
    net, *_ = machine()
    x = torch.rand(3, V, dtype=torch.float64, requires_grad=True)
    drawn = net.gibbs(0, x, 2)
    assert not drawn.requires_grad and set(drawn.unique().tolist()) <= {0.0, 1.0}


def test_the_initial_weights_are_uniform_by_the_number_of_inputs() -> None:
    torch.manual_seed(0)
    net = parse(DenseConfig, {"image": {"height": 20, "width": 20}, "widths": [50], "back": {}}).build()
    weight = net.get_parameter("layers.0.weight").detach()
    # Of 20,000 uniform draws the largest is within a thousandth of the bound 1/20, and their deviation 0.05 / sqrt 3.
    assert 0.04995 < float(weight.abs().max()) <= 0.05
    assert float(weight.std()) == pytest.approx(0.05 / 3 ** 0.5, rel=0.02)
    assert not net.get_parameter("back.0.bias").any()


def test_a_head_with_classes_of_each_layer() -> None:
    net, x = build(head={"kind": "layer_classes", "n_classes": 5}), vectors()
    head: Any = net.head
    assert [tuple(each.weight.shape) for each in head.maps] == [(5, H), (5, 2)]
    h = net(EncoderInputs(patches=x[:, None]))
    assert_close(head.scores(h, Span()), head.layer_scores(1, net.up(1, net.up(0, x))))


@pytest.mark.parametrize(("fields", "message"), [
    ({"widths": []}, r"widths: "),
    ({"back": {}, "rewrites": [{"kind": "lora"}]}, r"rewrites: a network with a way back uses its matrices in both"),
])
def test_configurations_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(DenseConfig, {**BASE, **fields})


def test_a_head_for_classes_must_say_how_many() -> None:
    with pytest.raises(ConfigError, match=r"head.n_classes: missing. Say how many classes there are, or name them"):
        build(head="layer_classes")
