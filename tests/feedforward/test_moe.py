"""Mixture of experts against the oracle, in float64; both ways of dispatching are held to all of it. The laws, of every
example, are run in tests/laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oracles import feedforward
from oracles import moe as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Output, Span
from weft.feedforward.glu import GLUConfig
from weft.feedforward.mlp import MLPConfig
from weft.feedforward.moe import MixtureOfExperts, MixtureOfExpertsConfig
from weft.feedforward.routing import RoutingSettings, gates, rank

B, T, D, F, N = 2, 5, 6, 4, 5
EXACT = {"rtol": 1e-12, "atol": 1e-12}
DISPATCH = pytest.mark.parametrize("dispatch", ["grouped", "dense"])
COUNT = torch.tensor([3, 5])
VALID = torch.arange(T)[None] < COUNT[:, None]


def mixture(seed: int = 0, **fields: object) -> MixtureOfExperts:
    torch.manual_seed(seed)
    config = MixtureOfExpertsConfig.model_validate({"expert": GLUConfig(d_ff=F), "n_experts": N, **fields})
    return config.build(Dims(D)).double()


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def losses(out: Output) -> dict[str, Tensor]:
    return {loss.name: loss.value for loss in out.losses}


def logits_of(layer: MixtureOfExperts, x: Tensor) -> np.ndarray:
    return (x @ layer.router.weight.T).detach().numpy()


@DISPATCH
@pytest.mark.parametrize(("k", "renormalise"), [(2, True), (1, False), (3, False), (N, True)])
def test_values_and_gradients_are_the_oracles(dispatch: str, k: int, renormalise: bool) -> None:
    layer = mixture(dispatch=dispatch, top_k=k, renormalise=renormalise)
    x = tokens(B, T).requires_grad_()
    arguments = [x, *layer.parameters()]
    numbers = [a.detach().numpy() for a in arguments]

    def reference(rows, router, *weights):
        experts = [lambda row, w=weights[3 * n:3 * n + 3]: feedforward.swiglu(row, *w) for n in range(N)]
        return oracle.mixture(rows.reshape(-1, D), router, experts, k, renormalise).reshape(rows.shape)

    y = layer(x).y
    assert_close(y.detach(), torch.from_numpy(reference(*numbers)), **EXACT)
    weight = torch.randn_like(y)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    assert gradient_agrees(reference, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy(),
                           n_directions=1)


@DISPATCH
@pytest.mark.parametrize("gated", [True, False])
def test_an_expert_for_every_token_is_added(dispatch: str, gated: bool) -> None:
    layer = mixture(dispatch=dispatch, shared_expert=GLUConfig(d_ff=3), shared_gate=gated)
    x = tokens(B, T).requires_grad_()
    gate = [] if layer.shared_gate is None else [layer.shared_gate.weight]
    shared = [layer.get_parameter(f"shared.{name}.weight") for name in ("gate", "up", "down")]
    routed = [layer.get_parameter(f"experts.{n}.{name}.weight") for n in range(N) for name in ("gate", "up", "down")]
    arguments = [x, layer.router.weight, *shared, *gate, *routed]
    numbers = [a.detach().numpy() for a in arguments]

    def reference(rows, router, *weights):
        own, others = weights[3:], weights[:3]
        flat = rows.reshape(-1, D)
        factor = 1 / (1 + np.exp(-flat @ own[0].T)) if gated else 1.0
        own = own[1:] if gated else own
        experts = [lambda row, w=own[3 * n:3 * n + 3]: feedforward.swiglu(row, *w) for n in range(N)]
        y = oracle.mixture(flat, router, experts, 2) + factor * feedforward.swiglu(flat, *others)
        return y.reshape(rows.shape)

    y = layer(x).y
    assert_close(y.detach(), torch.from_numpy(reference(*numbers)), **EXACT)
    weight = torch.randn_like(y)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    assert gradient_agrees(reference, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy(),
                           n_directions=1)


@DISPATCH
def test_a_bias_of_the_router_is_one_more_feature_that_is_always_1(dispatch: str) -> None:
    layer = mixture(dispatch=dispatch, routing=RoutingSettings(bias=True))
    x = tokens(B, T).requires_grad_()
    with torch.no_grad():
        layer.router.bias.copy_(torch.tensor([0.9, -0.3, 0.4, -1.1, 0.2]))
    arguments = [x, *layer.parameters()]
    assert [name for name, _ in layer.named_parameters()][:2] == ["router.weight", "router.bias"]

    def reference(rows, router, bias, *weights):
        experts = [lambda row, w=weights[3 * n:3 * n + 3]: feedforward.swiglu(row[:, :D], *w) for n in range(N)]
        wide = np.hstack([rows.reshape(-1, D), np.ones((B * T, 1))])
        wide_experts = [lambda row, f=f: np.hstack([f(row), np.zeros((1, 1))]) for f in experts]
        y = oracle.mixture(wide, np.hstack([router, bias[:, None]]), wide_experts, 2)
        return y[:, :D].reshape(rows.shape)

    numbers = [a.detach().numpy() for a in arguments]
    y = layer(x).y
    assert_close(y.detach(), torch.from_numpy(reference(*numbers)), **EXACT)
    weight = torch.randn_like(y)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    assert gradient_agrees(reference, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy(),
                           n_directions=1)


def test_a_gate_without_an_expert_is_refused() -> None:
    with pytest.raises(ConfigError, match="shared_gate: true, but there is no shared expert whose output it would"):
        parse_part(("feedforward",), {"kind": "moe", "shared_gate": True})


def test_the_two_ways_give_the_same_gradients_with_padding() -> None:
    x, found = tokens(B, T), []
    for dispatch in ("grouped", "dense"):
        layer = mixture(dispatch=dispatch)
        y = layer(x, None, Span(count=COUNT)).y
        assert not y[~VALID].any()
        found.append([y, *torch.autograd.grad((y * tokens(B, T, seed=5)).sum(), list(layer.parameters()))])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, **EXACT)


@DISPATCH
def test_losses_are_the_oracles_over_real_tokens(dispatch: str) -> None:
    layer = mixture(dispatch=dispatch, balance_loss=0.3, z_loss=0.7)
    x = tokens(B, T)
    for span, valid in ((Span(), None), (Span(count=COUNT), VALID.flatten().tolist())):
        found = losses(layer(x, None, span))
        logits = logits_of(layer, x.flatten(0, 1))
        assert set(found) == {"load_balance", "router_z"}
        assert found["load_balance"].item() == pytest.approx(0.3 * oracle.load_balancing_loss(logits, 2, valid), 1e-12)
        assert found["router_z"].item() == pytest.approx(0.7 * oracle.router_z_loss(logits, valid), 1e-12)


def test_gradients_of_the_losses_are_the_oracles() -> None:
    layer = mixture(balance_loss=1.0, z_loss=1.0)
    x = tokens(B, T)
    valid = VALID.flatten().tolist()
    router = layer.router.weight.detach().numpy()

    def balance(weight):
        return oracle.load_balancing_loss(x.flatten(0, 1).numpy() @ weight.T, 2, valid)

    def z(weight):
        return oracle.router_z_loss(x.flatten(0, 1).numpy() @ weight.T, valid)

    for name, function in (("load_balance", balance), ("router_z", z)):
        value = losses(layer(x, None, Span(count=COUNT)))[name]
        gradient, = torch.autograd.grad(value, layer.router.weight)
        assert gradient_agrees(function, [router], [gradient.numpy()], np.random.default_rng(0))


def test_losses_ignore_what_padding_holds() -> None:
    layer, x = mixture(), tokens(B, T)
    clean = losses(layer(x, None, Span(count=COUNT)))
    spoilt = losses(layer(x.masked_fill(~VALID[..., None], torch.nan), None, Span(count=COUNT)))
    wider = losses(layer(torch.cat([x, tokens(B, 3)], 1), None, Span(count=COUNT)))
    alone = losses(layer(x[VALID][None]))
    for name, value in clean.items():
        assert spoilt[name].item() == value.item()
        assert wider[name].item() == pytest.approx(value.item(), rel=1e-12)
        assert alone[name].item() == pytest.approx(value.item(), rel=1e-12)
        assert losses(layer(x))[name].item() != pytest.approx(value.item(), rel=1e-3)


def test_no_tokens_and_no_coefficients_give_no_losses() -> None:
    out = mixture()(tokens(B, T), None, Span(count=torch.zeros(B, dtype=torch.int64)))
    assert [value.item() for value in losses(out).values()] == [0.0, 0.0]
    assert [value.item() for value in losses(mixture()(tokens(B, 0))).values()] == [0.0, 0.0]
    assert mixture(balance_loss=0.0, z_loss=0.0)(tokens(B, T)).losses == ()


def test_balanced_choices_cost_one() -> None:
    layer = mixture(balance_loss=1.0, top_k=1)
    layer.router.weight.data = 5 * torch.eye(N, D, dtype=torch.float64)
    x = torch.eye(N, D, dtype=torch.float64)[None]
    assert losses(layer(x))["load_balance"].item() == pytest.approx(1.0, rel=1e-12)
    assert losses(layer(x[:, :1].expand(1, N, D)))["load_balance"].item() > 4  # all on one expert: towards N


@pytest.mark.parametrize(("dispatch", "bound"), [("dense", 0.0), ("grouped", 1e-14)])
def test_a_row_never_depends_on_its_neighbours(dispatch: str, bound: float) -> None:
    """To the last bit where shapes stay (dense). Grouped, a matrix product may round differently when its group has
    another number of rows: a few units in the last place (2e-16) of outputs below one."""
    layer = mixture(dispatch=dispatch)
    x = tokens(16, T)
    y = layer(x).y
    for seed in range(5):
        other = x.clone()
        other[seed] = 100 * tokens(T, seed=seed + 20)
        changed = (layer(other).y - y).abs().amax((1, 2))
        assert changed[seed] > 0.1
        changed[seed] = 0
        assert changed.max() <= bound


@DISPATCH
def test_no_expert_has_a_capacity(dispatch: str) -> None:
    """All tokens on the same two experts: every one gets its full output, and unused experts get zero gradients."""
    layer = mixture(dispatch=dispatch)
    layer.router.weight.data = torch.zeros_like(layer.router.weight)
    layer.router.weight.data[1:3] = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    x = tokens(4, T).abs()
    y = layer(x).y
    gate = torch.sigmoid(x.sum(-1, keepdim=True))
    assert_close(y, gate * layer.experts[2](x).y + (1 - gate) * layer.experts[1](x).y, **EXACT)
    y.sum().backward()
    assert not layer.experts[0].down.weight.grad.any() and layer.experts[1].down.weight.grad.all()


def test_ties_go_to_the_lower_expert() -> None:
    logits, plain = torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), RoutingSettings()
    chosen = rank(logits, plain).experts[:, :2]
    assert chosen.tolist() == [[1, 2], [0, 1]]
    assert_close(gates(logits, chosen, plain, renormalise=False)[1], torch.tensor([0.25, 0.25]))


def test_bfloat16_routes_in_float32() -> None:
    """Two experts whose logits differ by less than a bfloat16 rounding are still told apart."""
    layer = mixture(top_k=1).bfloat16()
    layer.router.weight.data = torch.zeros(N, D, dtype=torch.bfloat16)
    layer.router.weight.data[0, 0], layer.router.weight.data[1, :2] = 1.0, 1.0
    x = torch.zeros(1, 1, D, dtype=torch.bfloat16)
    x[..., 0], x[..., 1] = 1.0, 2**-12
    assert_close(layer(x).y, layer.experts[1](x).y, rtol=0, atol=0)


def test_compiles_without_graph_breaks() -> None:
    """The training forward and a decoding step."""
    layer = mixture()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = tokens(B, T)
    assert_close(compiled(x).y, layer(x).y, **EXACT)
    with torch.no_grad():
        state = layer.init_state(B)
        out = compiled(x[:, :1], state)
        assert_close(out.y, layer(x[:, :1], layer.init_state(B)).y, **EXACT)
        assert out.state.clock.seen.tolist() == [1, 1]


def test_inductor_keeps_the_routers_gradient() -> None:
    """The gradient through the gates, with both losses among the outputs; values alone would not show its loss."""
    torch.manual_seed(0)
    layer = MixtureOfExpertsConfig(expert=GLUConfig(d_ff=6), n_experts=4).build(Dims(8)).double()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    x, found = torch.randn(B, T, 8, dtype=torch.float64), []
    for module in (layer, compiled):
        found.append(torch.autograd.grad(module(x).y.sin().sum(), list(layer.parameters())))
    assert found[0][0].abs().max() > 1e-2
    for one, other in zip(*found, strict=True):
        assert_close(one, other, **EXACT)


@pytest.mark.parametrize(("fields", "message"), [
    ({"top_k": 3, "n_experts": 2}, "top_k: 3 experts per token, but there are only 2. Lower top_k or raise n_experts."),
    ({"n_experts": 0}, "n_experts: Input should be greater than 0, got 0"),
    ({"balance_loss": -1}, "balance_loss: Input should be greater than or equal to 0, got -1"),
    ({"expert": {"kind": "glu", "d_ff": 0}}, "expert.d_ff: Input should be greater than 0, got 0"),
    ({"expert": {"shared": "one"}}, "expert: the shared part 'one' would be the same weights in every expert."),
    ({"dispatch": "capacity"}, "dispatch: Input should be 'auto', 'grouped' or 'dense', got 'capacity'"),
])
def test_bad_configurations_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_part(("feedforward",), {"kind": "moe", **fields})
    assert message in str(error.value)


@pytest.mark.parametrize("kind", ["channel_mix", "moe"])
def test_an_expert_must_treat_tokens_by_themselves(kind: str) -> None:
    config = parse_part(("feedforward",), {"kind": "moe", "expert": kind})
    with pytest.raises(ConfigError, match=f"blocks.3.expert: '{kind}' does not treat every token by itself.*Use 'mlp'"):
        config.build(Dims(D, path="blocks.3"))


def test_any_pointwise_expert_will_do() -> None:
    layer = mixture(expert=MLPConfig(d_ff=3, activation="relu"), n_experts=2, top_k=2)
    x = tokens(B, T)
    gates = (x @ layer.router.weight.T).softmax(-1)
    assert_close(layer(x).y, sum(gates[..., n, None] * layer.experts[n](x).y for n in range(2)), **EXACT)
