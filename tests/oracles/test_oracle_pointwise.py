"""Activations, norms, feed-forwards, mixture of experts and losses against torch and transformers, in float64.

Tolerance 1e-12 against torch (values near 1, sums of at most 64 terms); transformers computes router probabilities in
float32, so its stored numbers are held to a few float32 roundings (2e-7 relative, 1e-6 for values up to 8).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

from . import activations, feedforward, losses, moe, norms
from .waves import wave

EXACT = {"rtol": 1e-12, "atol": 1e-12}
X = np.concatenate([np.linspace(-6, 6, 41), [-30.0, 30.0, 0.0]])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (activations.relu, torch.relu),
        (activations.squared_relu, lambda x: torch.relu(x) ** 2),
        (activations.sigmoid, torch.sigmoid),
        (activations.tanh, torch.tanh),
        (activations.silu, F.silu),
        (activations.gelu, F.gelu),
        (activations.gelu_tanh, partial(F.gelu, approximate="tanh")),
        (activations.softplus, partial(F.softplus, threshold=100.0)),
        (activations.softmax, partial(torch.softmax, dim=-1)),
        (activations.log_softmax, partial(torch.log_softmax, dim=-1)),
        (activations.logsumexp, partial(torch.logsumexp, dim=-1)),
    ],
)
def test_activations_equal_torch(ours, theirs):
    assert_allclose(ours(X), theirs(torch.tensor(X)).numpy(), **EXACT)


def test_the_two_gelus_differ_and_the_tails_do_not_overflow():
    assert np.max(np.abs(activations.gelu(X) - activations.gelu_tanh(X))) > 3e-4
    far = np.array([-1000.0, 1000.0])
    with np.errstate(over="raise"):
        assert_allclose(activations.softplus(far), [0.0, 1000.0], rtol=0, atol=0)
        assert_allclose(activations.sigmoid(far), [0.0, 1.0], rtol=0, atol=0)
    assert_allclose(activations.softmax(np.array([0.0, -np.inf, 0.0])), [0.5, 0.0, 0.5], rtol=0, atol=0)


def test_layernorm_and_rmsnorm_equal_torch():
    x, w, b = wave((2, 3, 5), 0.1), wave((5,), 0.2), wave((5,), 0.3)
    t = [torch.tensor(a) for a in (x, w, b)]
    assert_allclose(norms.layernorm(x, w, b, 1e-3), F.layer_norm(t[0], (5,), t[1], t[2], 1e-3), **EXACT)
    assert_allclose(norms.rmsnorm(x, w, 1e-3), F.rms_norm(t[0], (5,), t[1], 1e-3), **EXACT)
    assert_allclose(norms.rmsnorm(x, w, 1e-3, unit_offset=True), F.rms_norm(t[0], (5,), 1 + t[1], 1e-3), **EXACT)
    assert_allclose(norms.layernorm(np.array([1.0, 3.0]), eps=0.0), [-1.0, 1.0], **EXACT)
    assert_allclose(norms.rmsnorm(np.array([1.0, 7.0]), eps=0.0), [0.2, 1.4], **EXACT)


def test_batchnorm_equals_torch_on_the_real_tokens():
    x, w, b = wave((3, 4, 5), 0.1), wave((5,), 0.2), wave((5,), 0.3)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=bool)
    x[~mask] = 1e6
    module = torch.nn.BatchNorm1d(5, dtype=torch.float64)
    module.weight.data, module.bias.data = torch.tensor(w), torch.tensor(b)
    theirs = module(torch.tensor(x[mask])).detach().numpy()
    assert_allclose(norms.batchnorm(x, mask, w, b)[mask], theirs, **EXACT)
    mean, variance = norms.batchnorm_running(x, mask, np.zeros(5), np.ones(5))
    assert_allclose(mean, module.running_mean, **EXACT)
    assert_allclose(variance, module.running_var, **EXACT)
    evaluated = module.eval()(torch.tensor(x[mask])).detach().numpy()
    assert_allclose(norms.batchnorm_evaluation(x, mean, variance, w, b)[mask], evaluated, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("relu", torch.nn.ReLU()),
        ("gelu", torch.nn.GELU()),
        ("gelu_tanh", torch.nn.GELU("tanh")),
        ("silu", torch.nn.SiLU()),
    ],
)
def test_mlp_equals_two_torch_linears(name, module):
    net = torch.nn.Sequential(torch.nn.Linear(3, 7), module, torch.nn.Linear(7, 3)).double()
    x = wave((4, 3), 0.5)
    w_1, b_1, w_2, b_2 = [p.detach().numpy() for p in net.parameters()]
    assert_allclose(feedforward.mlp(x, w_1, w_2, b_1, b_2, name), net(torch.tensor(x)).detach(), **EXACT)


def test_gated_units_equal_torch():
    x, gate, up, down = wave((4, 3), 0.1), wave((5, 3), 0.2), wave((5, 3), 0.3), wave((3, 5), 0.4)
    b_gate, b_up, b_down = wave((5,), 0.5), wave((5,), 0.6), wave((3,), 0.7)
    t, g, u, d = [torch.tensor(a) for a in (x, gate, up, down)]
    for ours, f in (
        (feedforward.swiglu, F.silu),
        (feedforward.geglu, F.gelu),
        (partial(feedforward.geglu, approximate=True), partial(F.gelu, approximate="tanh")),
        (feedforward.reglu, F.relu),
    ):
        assert_allclose(ours(x, gate, up, down), F.linear(f(F.linear(t, g)) * F.linear(t, u), d), **EXACT)
    joined = F.linear(t, torch.cat([u, g]), torch.tensor(np.concatenate([b_up, b_gate])))
    theirs = F.linear(F.glu(joined), d, torch.tensor(b_down))
    assert_allclose(feedforward.glu(x, gate, up, down, "sigmoid", b_gate, b_up, b_down), theirs, **EXACT)


# transformers 5.23.0, float64: MixtralSparseMoeBlock(hidden 4, intermediate 3, 4 experts, top 2) with gate.weight
# wave((4, 4), 0.5), gate_up_proj wave((4, 6, 4), 0.8), down_proj wave((4, 4, 3), 1.1) on 2 wave((1, 5, 4), 0).
MIXTRAL = [
    [-8.058476920859, 5.320252089389, 2.686659835224, -8.032951593785],
    [-5.374716411634, 3.383231460399, 1.95869396415, -5.360909496208],
    [0.54838118641, -4.875024024062, 4.373892590347, 0.458738751713],
    [1.314789797955, 0.458225080124, -1.777456091415, 1.336458487573],
    [1.971085929349, -3.490945957517, 1.553695006693, 1.922192213786],
]


def mixtral_experts():
    gate_up, down = wave((4, 6, 4), 0.8), wave((4, 4, 3), 1.1)
    return [partial(feedforward.swiglu, w_gate=gate_up[n, :3], w_up=gate_up[n, 3:], w_down=down[n]) for n in range(4)]


def test_mixture_equals_mixtral():
    y = moe.mixture(2 * wave((5, 4), 0.0), wave((4, 4), 0.5), mixtral_experts(), 2)
    assert_allclose(y, MIXTRAL, rtol=0, atol=1e-6)


def test_renormalised_gates_are_a_softmax_over_the_chosen_logits():
    logits = 3 * wave((5, 4), 0.25)
    chosen, gates = moe.route(logits, 2)
    _, plain = moe.route(logits, 2, renormalise=False)
    values, indices = torch.topk(torch.tensor(logits), 2)
    assert chosen == indices.tolist()
    for t, best in enumerate(chosen):
        assert_allclose(gates[t, best], torch.softmax(values[t], -1), **EXACT)
        assert_allclose(plain[t, best], torch.softmax(torch.tensor(logits[t]), -1)[best], **EXACT)
        assert_allclose(gates[t].sum(), 1.0, **EXACT)
        assert plain[t].sum() < 1.0
    assert moe.route(np.zeros((1, 3)), 2)[0] == [[0, 1]]


def test_router_losses():
    # transformers 5.23.0 load_balancing_loss_func((logits,), 4, 2), then with attention mask 1 1 1 0 1; float32 inside
    logits = 3 * wave((5, 4), 0.25)
    valid = [True, True, True, False, True]
    assert_allclose(moe.load_balancing_loss(logits, 2, normalisation="token"), 1.8605855, rtol=2e-7)
    assert_allclose(moe.load_balancing_loss(logits, 2, valid, normalisation="token"), 2.033608, rtol=4e-7)
    assert_allclose(moe.load_balancing_loss(logits, 2), 1.8605855 / 2, rtol=2e-7)
    balanced = np.log(0.2 + 0.2 * np.eye(4))
    assert_allclose(moe.load_balancing_loss(balanced, 1), 1.0, **EXACT)
    theirs = torch.logsumexp(torch.tensor(logits), -1).square()
    assert_allclose(moe.router_z_loss(logits), theirs.mean(), **EXACT)
    assert_allclose(moe.router_z_loss(logits, valid), theirs[torch.tensor(valid)].mean(), **EXACT)


def test_cross_entropy_equals_torch():
    logits, targets = 4 * wave((6, 7), 0.3), np.array([0, 3, 6, 2, 2, 5])
    t, ids = torch.tensor(logits), torch.tensor(targets)
    counts = np.array([True, False, True, True, False, True])
    ignored = torch.where(torch.tensor(counts), ids, -100)
    for smoothing in (0.0, 0.1):
        theirs = F.cross_entropy(t, ignored, label_smoothing=smoothing)
        assert_allclose(losses.cross_entropy(logits, targets, counts, smoothing), theirs, **EXACT)
    assert_allclose(losses.gathered_log_prob(logits, targets).mean(), -F.cross_entropy(t, ids), **EXACT)
    kept = torch.logsumexp(t, -1).square()[torch.tensor(counts)]
    assert_allclose(losses.z_loss(logits, counts), kept.mean(), **EXACT)


@pytest.mark.parametrize("head_bias", [False, True])
def test_adaptive_softmax_equals_torch(head_bias):
    torch.manual_seed(0)
    module = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 11], div_value=2.0, head_bias=head_bias).double()
    h = wave((4, 8), 0.2)
    tails = [(p.weight.detach().numpy(), w.weight.detach().numpy()) for p, w in module.tail]
    bias = module.head.bias.detach().numpy() if head_bias else None
    ours = losses.adaptive_log_prob(h, module.head.weight.detach().numpy(), tails, [5, 11, 20], bias)
    assert_allclose(ours, module.log_prob(torch.tensor(h)).detach(), **EXACT)
    assert_allclose(np.exp(ours).sum(axis=1), 1.0, **EXACT)
