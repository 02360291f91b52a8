"""Mamba-2 against a naive loop from the paper's formulas: values and gradients; its parameters, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles import linear_attention as oracle
from oracles.convolution import causal_convolution
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.mamba2 import Mamba2, Mamba2Config
from weft.ops.forms import forced
from weft.ops.linear_recurrence_chunks import CHUNK

D, HEADS, SIZE, STATE, GROUPS, TAPS = 5, 4, 3, 2, 2, 3
INNER, SHARED = HEADS * SIZE, GROUPS * STATE
Array = np.ndarray[Any, Any]
OPTIONS: dict[str, dict[str, Any]] = {
    "per group": {},
    "whole width": {"norm": {"per_group": False, "eps": 0.1}},
    "norm first": {"norm": {"gate_order": "norm_first"}, "step_sizes": {"least": 0.6, "most": 0.9}},
    "gate alone": {"norm": None, "bias": True, "conv_bias": False,
                   "multipliers": {"input": 0.5, "z": 2.0, "x": 0.7, "b": 1.3, "c": 0.9, "dt": 1.1}},
}


def built(**options: Any) -> Mamba2:
    torch.manual_seed(0)
    layer = parse(Mamba2Config, {"n_heads": HEADS, "d_head": SIZE, "d_state": STATE, "n_groups": GROUPS,
                                 "d_conv": TAPS, **options}).build(Dims(D)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()  # biases, D and the norm's weights too
    return layer


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def normalised(y: Array, weight: Array, per_group: bool, eps: float) -> Array:
    groups = y.reshape(len(y), GROUPS if per_group else 1, -1)
    return weight * (groups / np.sqrt((groups * groups).mean(2, keepdims=True) + eps)).reshape(y.shape)


def by_hand(config: Mamba2Config, begins: list[bool] | None, x: Array, p: dict[str, Array]) -> Array:
    """Dao & Gu 2024, section 2.1 with the layer of section 7, head by head and token by token; dt, its bounds, the
    order of projections and of gate and norm are those of the published code."""
    f = config.multipliers
    wide = x * (f.input if f else 1.0) @ p["input.weight"].T + p.get("input.bias", 0.0)
    z, inner, b, c, dt = np.split(wide, np.cumsum([INNER, INNER, SHARED, SHARED]), axis=1)
    if f:
        z, inner, b, c, dt = z * f.z, inner * f.x, b * f.b, c * f.c, dt * f.dt
    # A depthwise convolution as a full one with a diagonal weight.
    taps = np.einsum("gk,gi->gik", p["convolution.weight"][:, 0], np.eye(INNER + 2 * SHARED))
    mixed = silu(causal_convolution(np.concatenate([inner, b, c], 1), taps, p.get("convolution.bias"), begins=begins))
    dt = np.log1p(np.exp(dt + p["dt_bias"]))
    dt = np.clip(dt, config.step_sizes.least, config.step_sizes.most)
    rows = []
    for head in range(HEADS):
        group = head // (HEADS // GROUPS)
        own = mixed[:, head * SIZE:(head + 1) * SIZE]
        key, query = (mixed[:, start + group * STATE:start + (group + 1) * STATE] for start in (INNER, INNER + SHARED))
        decay = np.repeat(np.exp(-np.exp(p["log_rate"][head]) * dt[:, head:head + 1]), STATE, 1)
        rows.append(oracle.decaying_memory(query, key * dt[:, head:head + 1], own, decay, begins)
                    + p["skip"][head] * own)
    y = np.concatenate(rows, 1)
    if config.norm is None:
        y = y * silu(z)
    elif config.norm.gate_order == "norm_first":
        y = normalised(y, p["norm.weight"], config.norm.per_group, config.norm.eps) * silu(z)
    else:
        y = normalised(y * silu(z), p["norm.weight"], config.norm.per_group, config.norm.eps)
    return y @ p["output.weight"].T + p.get("output.bias", 0.0)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(("steps", "documents"), [(9, False), (CHUNK + 6, True)])
def test_it_matches_the_oracle(options: dict[str, Any], steps: int, documents: bool) -> None:
    layer = built(**options)
    begins = [t in (3, 5, CHUNK + 1) for t in range(steps)] if documents else None
    x = torch.randn(1, steps, D, dtype=torch.float64, requires_grad=True)
    y = layer(x, None, Span(begins=None if begins is None else torch.tensor([begins]))).y
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def reference(x: Array, *values: Array) -> Array:
        return by_hand(layer.config, begins, x, dict(zip(names, values, strict=True)))

    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in parameters)]
    np.testing.assert_allclose(y[0].detach().numpy(), reference(*args), rtol=1e-9, atol=1e-11)
    cotangent = torch.randn_like(y)
    found = [g.numpy() for g in torch.autograd.grad((y * cotangent).sum(), [x, *parameters])]
    # Ends of bounded steps have a kink, at which finite differences of 1e-4 are no derivative; none lies this near.
    assert gradient_agrees(reference, args, [found[0][0], *found[1:]], np.random.default_rng(0),
                           cotangent=cotangent[0].numpy(), n_directions=1, rtol=1e-6)


def test_groups_are_not_repeated_for_heads() -> None:
    """What is kept for the backward pass holds B and C once for each group, whatever the number of heads."""
    layer = parse(Mamba2Config, {"n_heads": 64, "d_head": 2, "d_state": 32}).build(Dims(8))
    kept = list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each), \
            forced({"linear_recurrence": "operator"}):
        layer(torch.randn(1, 3 * CHUNK, 8))
    assert max(each.numel() for each in kept) < 3 * CHUNK * 64 * 32 / 2


def test_the_first_values_are_the_published_ones() -> None:
    torch.manual_seed(0)
    layer = Mamba2Config(n_heads=4096, d_head=1, d_state=1, step_sizes={"dt_floor": 0.002}).build(Dims(2))  # type: ignore[arg-type]
    rate, dt = layer.log_rate.detach().exp(), torch.nn.functional.softplus(layer.dt_bias.detach())
    assert 1 <= rate.min() < 1.05 and 15.9 < rate.max() <= 16 and abs(float(rate.mean()) - 8.5) < 0.2
    assert 0.00199 < dt.min() < 0.00201 and 0.098 < dt.max() <= 0.1001
    # Of log-uniform numbers from 0.001 to 0.1, half lie below 0.01.
    assert abs(float((dt < 0.01).float().mean()) - 0.5) < 0.03
    assert torch.equal(layer.skip, torch.ones(4096))
    assert (built().heads, Mamba2Config(d_head=4).build(Dims(32)).heads) == (4, 16)


def test_dynamics_have_no_weight_decay_and_stay_exact() -> None:
    layer = built().to(torch.bfloat16)
    assert {id(p) for p in layer.declares().dynamics} == {id(layer.log_rate), id(layer.dt_bias), id(layer.skip)}
    assert all(p.dtype == torch.float64 or p.dtype == torch.float32 for p in layer.declares().dynamics)


@pytest.mark.parametrize(("given", "message"), [
    ({"d_head": 7}, r"d_head: 2 d_model, 10, does not divide into heads of 7 features\. Give n_heads, or another"),
    ({"n_heads": 4, "n_groups": 3}, r"n_groups: 4 heads do not divide into 3 groups\. Choose n_groups among the div"),
    ({"step_sizes": {"dt_min": 0.2}},
     r"step_sizes\.dt_min: 0\.2 is above dt_max, 0\.1\. Give the smaller step as dt_min"),
    ({"step_sizes": {"least": 2.0, "most": 1.0}},
     r"step_sizes\.least: 2 is above most, 1\. Give the smaller bound as least"),
    ({"norm": {"gate_order": "gate"}}, r"norm\.gate_order"),
])
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Mamba2Config, given).build(Dims(D))
