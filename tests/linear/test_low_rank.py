"""Terms of low rank beside plain and quantised matrices, against the equations written out in NumPy: values and
gradients, with and without trained lengths (DoRA), beside all rows and beside some."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from linear.small import TOKENS, model
from weft.core.errors import ConfigError
from weft.linear.linear import Linear
from weft.linear.lora import LoRAConfig
from weft.linear.low_rank import Adapted, LowRank, LowRankParts
from weft.linear.quantised import Int4Config, Int8Config

EXACT = {"rtol": 1e-10, "atol": 1e-10}
"""float64; products of a few dozen terms in another order."""
ROWS = {"q": 6, "k": 3, "v": 4}
BASES: dict[str, Any] = {"float": None, "int8": Int8Config(), "int4": Int4Config()}
CONFIGS = {
    "plain": LoRAConfig(rank=2, alpha=3.0), "stabilised": LoRAConfig(rank=2, alpha=3.0, rank_stabilised=True),
    "dora": LoRAConfig(rank=2, alpha=3.0, dora=True), "parts": LoRAConfig(rank=2, alpha=3.0, maps=["q", "v"]),
    "parts of dora": LoRAConfig(rank=2, alpha=3.0, maps=["qkv.v", "q"], dora=True, ranks={"v": 3}, alphas={"v": 1.5})}


def written_out(config: LoRAConfig, w: Any, bias: Any, terms: dict[str, tuple[Any, Any, Any]], x: Any,
                dy: Any) -> tuple[Any, dict[str, Any]]:
    """y and the gradients of A, B, m and x, for the rows of each term one after the other: Hu et al. 2022, equation 3;
    Liu et al. 2024, equation 5, whose norm is a constant of the gradient (section 4.3)."""
    y, dx, found, start = x @ w.T + bias, dy @ w, {}, 0
    for name, count in ROWS.items() if "" not in terms else [("", sum(ROWS.values()))]:
        rows, start = slice(start, start + count), start + count
        if name not in terms:
            continue
        a, b, m = terms[name]
        rank, alpha = len(a), config.alphas.get(name, config.alpha)
        s = alpha / (math.sqrt(rank) if config.rank_stabilised else rank)
        whole = w[rows] + s * b @ a
        gain = np.ones(count) if m is None else m / np.sqrt((whole ** 2).sum(1))
        y[:, rows] = gain * (x @ whole.T) + bias[rows]
        dwhole = (gain * dy[:, rows]).T @ x
        dx += (gain * dy[:, rows]) @ whole - dy[:, rows] @ w[rows]
        found[name, "a"], found[name, "b"] = s * b.T @ dwhole, s * dwhole @ a.T
        if m is not None:
            found[name, "m"] = (dy[:, rows] * (x @ whole.T)).sum(0) * gain / m
    return y, {**found, "x": dx}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", CONFIGS)
def test_values_and_gradients_are_those_of_the_equations(name: str, base: str) -> None:
    torch.manual_seed(0)
    config, plain = CONFIGS[name], Linear(7, sum(ROWS.values()), outputs=ROWS).double()
    under = plain if BASES[base] is None else BASES[base].rewriter()(plain)
    found = config.applied("stack.layers.0.qkv", under, config.rewriter())
    assert isinstance(found, LowRankParts if "parts" in name else LowRank)
    assert torch.equal(found(torch.eye(7).double()), under(torch.eye(7).double())) or config.dora
    assert_close(found(torch.eye(7).double()), under(torch.eye(7).double()), **EXACT)  # it starts as its base
    found.perturb(torch.Generator().manual_seed(1))
    x, dy = torch.randn(5, 7).double().requires_grad_(), torch.randn(5, 13).double()
    w, bias = under.dense() if BASES[base] is not None else (plain.weight, plain.bias)
    terms = {part: tuple(None if t is None else t.detach().numpy() for t in (
        term.a.weight, term.b.weight, term.magnitude)) for part, term in found.terms().items()}
    y, wanted = written_out(config, w.detach().numpy(), bias.detach().numpy(), terms, x.detach().numpy(), dy.numpy())
    actual = found(x)
    assert_close(actual, torch.from_numpy(y), **EXACT)
    actual.backward(dy)
    got = {(part, kind): t.grad for part, term in found.terms().items() for kind, t in (
        ("a", term.a.weight), ("b", term.b.weight), ("m", term.magnitude)) if t is not None}
    assert set(got) | {"x"} == set(wanted)
    assert_close(x.grad, torch.from_numpy(wanted["x"]), **EXACT)
    for key, gradient in got.items():
        assert_close(gradient, torch.from_numpy(wanted[key]), **EXACT)
    one = found.merged()
    assert_close(one(x), actual, **EXACT)
    dense = found.dense()
    assert dense is not None
    assert_close(dense[0], one.weight, **EXACT)


def test_a_row_of_zeros_has_no_length_and_is_no_nan() -> None:
    plain = Linear(3, 2, False)
    torch.nn.init.zeros_(plain.weight)
    found = LoRAConfig(rank=1, dora=True).rewriter()(plain)
    y = found(torch.ones(1, 3))
    y.sum().backward()
    assert torch.equal(y, torch.zeros(1, 2)) and not any(bool(p.grad.isnan().any()) for p in found.trained())


def test_queries_and_values_alone_are_adapted() -> None:
    found = model([{"kind": "lora", "rank": 2, "maps": ["qkv.q", "v"], "ranks": {"v": 1}}])
    qkv = found.stack.layers[0].layers[0].qkv
    assert {name: tuple(term.b.weight.shape) for name, term in qkv.terms().items()} == {"q": (8, 2), "v": (8, 1)}
    assert sum(isinstance(each, Adapted) for each in found.modules()) == 1
    trained = {name for name, p in found.named_parameters() if p.requires_grad}
    assert trained == {f"stack.layers.0.layers.0.qkv.parts.{part}.{each}.weight" for part in "qv" for each in "ab"}


@pytest.mark.parametrize(("kinds", "wanted"), [
    (["attention*"], {"qkv", "output"}), (["logits"], {"map"}),
    (["feed-forward"], {"gate", "up", "down", "router", "key", "value", "receptance"})])
def test_maps_are_chosen_by_what_they_are(kinds: list[str], wanted: set[str]) -> None:
    found = model([{"kind": "lora", "rank": 1, "kinds": kinds}])
    assert {path.rsplit(".", 1)[-1] for path, each in found.named_modules() if isinstance(each, Adapted)} == wanted


def test_left_out_maps_are_those_that_hold_the_rank() -> None:
    found = model([{"kind": "lora", "rank": 4}])
    assert not any("router" in path for path, each in found.named_modules() if isinstance(each, Adapted))


def test_a_model_is_quantised_and_then_adapted() -> None:
    found = model([{"kind": "int8"}, {"kind": "lora", "rank": 1, "maps": ["qkv.q", "down"], "dora": True}])
    loss = found.train()(TOKENS).y.square().sum()
    loss.backward()
    trained = [name for name, p in found.named_parameters() if p.requires_grad]
    assert len(trained) == 3 * 5 and all(".experts." in name or bool(found.get_parameter(name).grad.abs().sum() > 0)
                                         for name in trained)


def test_dropout_leaves_the_base_as_it_is() -> None:
    found = LoRAConfig(rank=2, dropout=0.5, dora=True).rewriter()(Linear(4, 4)).train()
    x = torch.randn(3, 4)
    assert_close(found(x), found.base(x))  # B is zero
    assert found.dense() is None and found.eval().dense() is not None


@pytest.mark.parametrize(("rewrite", "message"), [
    ({"rank": 9}, r"rewrites.0.rank: no linear map of this model has so many inputs and outputs. Lower it."),
    ({"rank": 9, "maps": ["qkv", "down"]},
     r"rewrites.0.rank: above the size of 5 matrices: stack.layers.0.layers.0.qkv \(24 x 8\), .* Lower it there "
     r"\(ranks: \{stack.layers.0.layers.0.qkv: 1\}\), or leave them out of `maps`."),
    ({"rank": 2, "maps": ["qkv.q"], "ranks": {"qkv.v": 1}},
     r"rewrites.0.ranks.qkv.v: it matches no adapted map. Did you mean 'qkv.q'\?"),
    ({"rank": 2, "alphas": {"quv": 1.0}}, r"rewrites.0.alphas.quv: it matches no adapted map. Did you mean 'qkv'\?"),
    ({"rank": 2, "kinds": ["atention"]},
     r"rewrites.0.kinds.0: 'atention' is no kind of part with linear maps in this model. Known names: attention proj"),
    ({"rank": 2, "kinds": ["feed-forward"], "maps": ["qkv"]},
     r"rewrites.0.maps.0: 'qkv' matches no linear map of these kinds of this model."),
    ({"rank": 2, "maps": ["qkv.w"]}, r"rewrites.0.maps.0: 'qkv.w' matches no linear map of this model."),
    ({"rank": 0}, r"rewrites.0.rank: Input should be greater than 0"),
    ({"ranks": {"q": 0}}, r"rewrites.0.ranks.q: Input should be greater than 0")])
def test_what_cannot_be_adapted_is_one_error(rewrite: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model([{"kind": "lora", **rewrite}])
