"""RWKV's time mixing against naive loops from the papers' equations: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import rwkv_time as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse_part
from weft.core.errors import ConfigError, InputError
from weft.core.layer import Layer
from weft.core.part_config import Dims
from weft.core.span import Given, Span
from weft.mixers.rwkv4 import Rwkv4Config
from weft.mixers.rwkv5 import Rwkv5Config
from weft.mixers.rwkv6 import Rwkv6Config
from weft.mixers.rwkv7 import VALUES, Rwkv7Config

D, T, HEADS, SIZE = 5, 9, 3, 4
BEGINS = [False, False, False, True, False, False, False, True, False]
DOCUMENTS = pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
Array = np.ndarray[Any, Any]


def built(config: Any) -> Any:
    """The layer in the middle of a model, every parameter random."""
    torch.manual_seed(0)
    layer = config.build(Dims(D, layer=1, n_layers=3)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.7)
    return layer


def check(layer: Layer, reference: Any, begins: list[bool] | None, given: Tensor | None = None) -> None:
    """Values, and gradients of the input and of all parameters, which ``reference`` takes by name."""
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    span = Span(begins=None if begins is None else torch.tensor([begins]))
    span = span if given is None else span.passing((Given(VALUES, given),))
    y = layer(x, None, span).y

    def of(row: Array, *values: Array) -> Array:
        found: Array = reference(row, dict(zip(names, values, strict=True)), begins)
        return found

    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in layer.parameters())]
    np.testing.assert_allclose(y[0].detach().numpy(), of(*args), rtol=1e-10, atol=1e-12)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *layer.parameters()])
    found = [gradients[0][0].numpy(), *(g.numpy() for g in gradients[1:])]
    assert gradient_agrees(of, args, found, np.random.default_rng(0), cotangent=cotangent[0].numpy(), n_directions=1)


def heads(x: Array) -> Array:
    return x.reshape(T, HEADS, SIZE)


def by_head(head: Any) -> Array:
    return np.stack([head(h) for h in range(HEADS)], 1)


@DOCUMENTS
def test_version_4_is_the_papers(begins: list[bool] | None) -> None:
    """Peng et al. 2023, equations 11 to 17."""
    def reference(x: Array, p: dict[str, Array], begins: list[bool] | None) -> Array:
        before = oracle.shifted(x, begins)
        r, k, v = ((p[f"mix_{n}"] * x + (1 - p[f"mix_{n}"]) * before) @ p[f"{n}.weight"].T
                   for n in ("receptance", "key", "value"))
        mean = oracle.four(k, v, -np.exp(p["decay"]), p["bonus"], begins)
        return (oracle.sigmoid(r) * mean) @ p["output.weight"].T

    check(built(Rwkv4Config(d_attention=7)), reference, begins)


def gated(o: Array, gate: Array, p: dict[str, Array]) -> Array:
    normed = oracle.head_norm(o, p["norm.weight"], p["norm.bias"], 64e-5)
    return (normed.reshape(T, -1) * gate) @ p["output.weight"].T


@DOCUMENTS
def test_version_5_is_the_papers(begins: list[bool] | None) -> None:
    """Peng et al. 2024, section 4.1."""
    def reference(x: Array, p: dict[str, Array], begins: list[bool] | None) -> Array:
        before = oracle.shifted(x, begins)
        r, k, v, g = ((p[f"mix_{n}"] * x + (1 - p[f"mix_{n}"]) * before) @ p[f"{n}.weight"].T
                      for n in ("receptance", "key", "value", "gate"))
        decay = np.tile(np.exp(-np.exp(p["decay"])), (T, 1, 1))
        o = by_head(lambda h: oracle.matrix(heads(r)[:, h], heads(k)[:, h], heads(v)[:, h], decay[:, h],
                                            p["bonus"][h], begins))
        return gated(o, oracle.silu(g), p)

    check(built(Rwkv5Config(n_heads=HEADS, d_head=SIZE)), reference, begins)


@DOCUMENTS
def test_version_6_is_the_papers(begins: list[bool] | None) -> None:
    """Peng et al. 2024, section 4.2."""
    def reference(x: Array, p: dict[str, Array], begins: list[bool] | None) -> Array:
        away = oracle.shifted(x, begins) - x
        narrow = np.tanh((x + away * p["shift_first"]) @ p["shift_narrow.weight"].T).reshape(T, 5, 2)
        xw, xk, xv, xr, xg = (x + away * (p["shift"][i] + narrow[:, i] @ p["shift_wide"][i]) for i in range(5))
        r, k, v, g = (each @ p[f"{n}.weight"].T for each, n in ((xr, "receptance"), (xk, "key"), (xv, "value"),
                                                                (xg, "gate")))
        rates = heads(np.tanh(xw @ p["decay_narrow.weight"].T) @ p["decay_wide.weight"].T)
        decay = np.exp(-np.exp(p["decay"] + rates))
        o = by_head(lambda h: oracle.matrix(heads(r)[:, h], heads(k)[:, h], heads(v)[:, h], decay[:, h],
                                            p["bonus"][h], begins))
        return gated(o, oracle.silu(g), p)

    check(built(Rwkv6Config(n_heads=HEADS, d_head=SIZE, shift_rank=2, decay_rank=3)), reference, begins)


@DOCUMENTS
@pytest.mark.parametrize("residual", [False, True], ids=["first", "later"])
def test_version_7_is_the_papers(residual: bool, begins: list[bool] | None) -> None:
    """Peng et al. 2025, section 4."""
    first = torch.randn(1, T, HEADS * SIZE, dtype=torch.float64)

    def low_rank(x: Array, p: dict[str, Array], name: str) -> Array:
        narrow = x @ p[f"{name}.narrow.weight"].T
        return (np.tanh(narrow) if name == "decay" else narrow) @ p[f"{name}.wide.weight"].T + p[f"{name}.bias"]

    def reference(x: Array, p: dict[str, Array], begins: list[bool] | None) -> Array:
        away = oracle.shifted(x, begins) - x
        xr, xw, xk, xv, xa, xg = (x + away * p["shift"][i] for i in range(6))
        r, k, v = (each @ p[f"{n}.weight"].T for each, n in ((xr, "receptance"), (xk, "key"), (xv, "value")))
        if residual:
            v = v + oracle.sigmoid(low_rank(xv, p, "share")) * (first[0].numpy() - v)
        rate, decay = oracle.sigmoid(low_rank(xa, p, "rate")), np.exp(
            -np.exp(-0.5) * oracle.sigmoid(low_rank(xw, p, "decay")))
        gate = oracle.sigmoid(xg @ p["gate_narrow.weight"].T) @ p["gate_wide.weight"].T
        kappa = heads(k * p["key_scale"])
        kappa = kappa / np.sqrt((kappa ** 2).sum(-1, keepdims=True))
        k = k * (1 + (rate - 1) * p["key_rate"])
        each = [heads(part) for part in (r, k, v)]
        o = by_head(lambda h: oracle.seven(*(part[:, h] for part in each), kappa[:, h], heads(rate)[:, h],
                                           heads(decay)[:, h], begins))
        normed = oracle.head_norm(o, p["norm.weight"], p["norm.bias"], 64e-5)
        normed = normed + (each[0] * each[1] * p["bonus"]).sum(-1, keepdims=True) * each[2]
        return (normed.reshape(T, -1) * gate) @ p["output.weight"].T

    config = Rwkv7Config(n_heads=HEADS, d_head=SIZE, value_residual=residual, decay_rank=2, rate_rank=3, value_rank=2,
                         gate_rank=3)
    check(built(config), reference, begins, first if residual else None)


@pytest.mark.parametrize("kind", ["rwkv4", "rwkv5", "rwkv6", "rwkv7"])
def test_long_rows_in_pieces_are_the_whole(kind: str) -> None:
    """Past the chunks of 32 and 64 tokens, with a padded row and two documents."""
    layer = built(parse_part(("mixer",), {"kind": kind} if kind == "rwkv4" else {"kind": kind, "n_heads": 2,
                                                                                 "d_head": 3}))
    x, begins = torch.randn(2, 150, D, dtype=torch.float64), torch.zeros(2, 150, dtype=torch.bool)
    begins[1, 41] = True
    count = torch.tensor([150, 101])
    whole = layer(x, None, Span(count=count, begins=begins)).y
    state, pieces = layer.init_state(2), []
    for first, last in ((0, 70), (70, 71), (71, 150)):
        out = layer(x[:, first:last], state, Span(count=(count - first).clamp(0, last - first),
                                                  begins=begins[:, first:last]))
        state, pieces = out.state, [*pieces, out.y]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("config", "smallest", "largest"), [
    (Rwkv4Config(), -5.0, 3.0), (Rwkv5Config(n_heads=2), -6.0, -1.0), (Rwkv6Config(n_heads=2), -6.0, -1.0)])
def test_decays_start_as_the_layers_schedule_says(config: Any, smallest: float, largest: float) -> None:
    first, last = (config.build(Dims(8, layer=layer, n_layers=3)).decay.detach().flatten() for layer in (0, 2))
    for decay, power in ((first, 0.7), (last, 2.0)):
        wanted = smallest + (largest - smallest) * (torch.arange(8) / 7) ** power
        torch.testing.assert_close(decay, wanted)


def test_version_4_starts_as_the_released_code() -> None:
    layer = Rwkv4Config().build(Dims(4, layer=1, n_layers=2))
    ramp = torch.arange(4) / 4
    torch.testing.assert_close(layer.mix_value.detach(), ramp ** 0.5 + 0.3)
    torch.testing.assert_close(layer.mix_receptance.detach(), ramp ** 0.25)
    torch.testing.assert_close(layer.bonus.detach(), torch.tensor([0.0, 0.5, -0.5, 0.0]) + np.log(0.3))


def test_version_7_starts_as_the_released_code() -> None:
    """The numbers of the first layer of a model of width 4 with heads of 2 features."""
    layer = Rwkv7Config(n_heads=2, value_residual=True).build(Dims(4, layer=0, n_layers=2))
    zigzag, line = torch.tensor([-1.0, 1.0, -1.0, 1.0]), torch.arange(4) / 3 - 0.5
    torch.testing.assert_close(layer.decay.bias.detach(), -5.5 + 6 * (line + 0.5) + 2.5 * zigzag)
    torch.testing.assert_close(layer.rate.bias.detach(), -0.19 + 0.3 * zigzag + 0.4 * line)
    torch.testing.assert_close(layer.share.bias.detach(), 0.73 - 0.4 * line)
    torch.testing.assert_close(layer.key_scale.detach(), 0.71 - 0.1 * line)
    torch.testing.assert_close(layer.shift[3].detach(), 1 - (torch.arange(4) / 4) ** 0.7)
    assert layer.norm.weight[0, 0].item() == pytest.approx(0.5 ** 0.7)
    assert [layer.decay.narrow.out_features, Rwkv7Config().build(Dims(1024)).decay.narrow.out_features] == [32, 64]


@pytest.mark.parametrize("kind", ["rwkv4", "rwkv6", "rwkv7"])
def test_compiles_without_graph_breaks(kind: str) -> None:
    layer = built(parse_part(("mixer",), {"kind": kind}
                             if kind == "rwkv4" else {"kind": kind, "n_heads": 2, "d_head": 3}))
    torch._dynamo.reset()
    compiled: nn.Module = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.randn(2, 40, D, dtype=torch.float64)
    torch.testing.assert_close(compiled(x).y, layer(x).y, rtol=1e-12, atol=1e-12)


def test_a_layer_that_takes_values_alone_says_what_is_missing() -> None:
    layer = Rwkv7Config(n_heads=1, value_residual=True).build(Dims(D))
    with pytest.raises(InputError, match="no layer before this one gave 'rwkv_values'"):
        layer(torch.randn(1, 2, D))


def test_a_width_that_does_not_divide_into_heads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_heads: d_model 10 does not divide into 4 heads"):
        Rwkv6Config().build(Dims(10))


def test_the_fifth_version_s_gate_is_mixed_as_in_the_released_code() -> None:
    """(i / D)^((1 - layer / n_layers) / 2), as receptances are; keys have the whole power."""
    layer = parse_part(("mixer",), {"kind": "rwkv5", "n_heads": 2}).build(Dims(8, 11, 16, layer=1, n_layers=4))
    channel = torch.arange(8) / 8
    torch.testing.assert_close(layer.mix_gate.detach(), channel ** 0.375)
    torch.testing.assert_close(layer.mix_receptance.detach(), channel ** 0.375)
    torch.testing.assert_close(layer.mix_key.detach(), channel ** 0.75)
