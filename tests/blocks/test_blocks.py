"""Every wiring against its formula, written out over the block's own layers and norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import randomise
from weft.blocks.base import Block, BlockConfig
from weft.blocks.residual import PreNormConfig
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.norms.rmsnorm import RMSNormConfig

D = 6
LAYERS = [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 5}, "gru"]
Wiring = Callable[[Tensor, list[Callable[[Tensor], Tensor]], list[Callable[[Tensor], Tensor]], float], Tensor]


def build(kind: str, **fields: Any) -> Block:
    config = parse_part(("block",), {"kind": kind, "layers": LAYERS, **fields})
    assert isinstance(config, BlockConfig)
    block = config.build(Dims(D)).double().eval()
    randomise(block)
    return block


def vectors(rows: int = 2) -> Tensor:
    return torch.randn(rows, 5, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def pre(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    for f, norm in zip(layers, norms, strict=True):
        x = keep * x + f(norm(x))
    return x


def pre_with_normed_skips(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    for f, norm in zip(layers, norms, strict=True):
        x = keep * norm(x) + f(norm(x))
    return x


def pre_from_the_second(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    first, *others = layers
    return pre(keep * x + first(x), others, norms[1:], keep)


def post(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    for f, norm in zip(layers, norms, strict=True):
        x = norm(keep * x + f(x))
    return x


def post_inside(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    for f, norm in zip(layers, norms, strict=True):
        x = keep * x + norm(f(x))
    return x


def plain(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    assert not norms
    for f in layers:
        x = keep * x + f(x)
    return x


def sandwich(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    for index, f in enumerate(layers):
        x = keep * x + norms[2 * index + 1](f(norms[2 * index](x)))
    return x


def parallel(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    (norm,) = norms
    return keep * x + sum(f(norm(x)) for f in layers)


def parallel_with_own_norms(x: Tensor, layers: Any, norms: Any, keep: float) -> Tensor:
    return keep * x + sum(f(norm(x)) for f, norm in zip(layers, norms, strict=True))


WIRINGS: dict[str, tuple[str, dict[str, Any], Wiring]] = {
    "pre": ("pre", {}, pre), "pre, normed skips": ("pre", {"skip_normed": True}, pre_with_normed_skips),
    "pre, first without": ("pre", {"first_norm": False}, pre_from_the_second),
    "post": ("post", {}, post), "post, inside": ("post", {"inside": True}, post_inside), "plain": ("plain", {}, plain),
    "sandwich": ("sandwich", {"norm": "rmsnorm"}, sandwich), "parallel": ("parallel", {}, parallel),
    "parallel, own norms": ("parallel", {"shared_norm": False}, parallel_with_own_norms)}


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", WIRINGS)
def test_the_wiring_is_its_formula(name: str, residual: bool) -> None:
    kind, fields, wiring = WIRINGS[name]
    block, x = build(kind, residual=residual, **fields), vectors()
    layers = [lambda y, layer=layer: layer(y).y for layer in block.children_layers()]
    norms = [lambda y, norm=norm: norm(y) for norm in block.norms]
    assert_close(block(x).y, wiring(x, layers, norms, 1.0 if residual else 0.0), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", ["pre", "post", "plain", "sandwich", "parallel"])
def test_a_branch_can_be_scaled(kind: str) -> None:
    """x + 0.3 for a layer whose output is the constant 1 and norms that change nothing."""
    block = build(kind, layers=[{"kind": "mlp", "d_ff": 5}], norm="none", branch_scale=0.3)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            parameter.fill_(1.0 if name.endswith("down.bias") else 0.0)
    x = vectors()
    assert_close(block(x).y - x, torch.full_like(x, 0.3), rtol=0, atol=1e-14)


def test_every_norm_is_a_module_of_its_own() -> None:
    assert {name: len(build(*WIRINGS[name][:1], **WIRINGS[name][1]).norms) for name in WIRINGS} == {
        "pre": 3, "pre, normed skips": 3, "pre, first without": 3, "post": 3, "post, inside": 3, "plain": 0,
        "sandwich": 6, "parallel": 1, "parallel, own norms": 3}
    norms = list(build("pre").norms)
    assert len({id(norm) for norm in norms}) == 3


@pytest.mark.parametrize("kind", ["pre", "post", "plain", "sandwich", "parallel"])
def test_a_layer_s_output_is_dropped_only_in_training(kind: str) -> None:
    # An MLP whose output is the constant 1 shows the dropout itself: 0 or 2 on every residual branch.
    block = build(kind, layers=[{"kind": "mlp", "d_ff": 5}], dropout=0.5, norm="none")
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            parameter.fill_(1.0 if name.endswith("down.bias") else 0.0)
    x = vectors(40)
    assert_close(block(x).y - x, torch.ones_like(x), rtol=0, atol=1e-14)
    torch.manual_seed(0)
    added = block.train()(x).y - x
    twice = added > 1
    assert_close(added, 2 * twice.double(), rtol=0, atol=1e-14)
    # 1200 draws: the share's standard deviation is 0.0144.
    assert abs(twice.double().mean().item() - 0.5) < 0.06


@pytest.mark.parametrize("kind", ["pre", "post", "plain", "sandwich", "parallel"])
def test_states_of_the_layers_are_threaded_on_one_clock(kind: str) -> None:
    block, x = build(kind), vectors()
    state = block.init_state(2)
    first = block(x[:, :2], state)
    second = block(x[:, 2:], first.state)
    assert_close(torch.cat([first.y, second.y], 1), block(x).y, rtol=1e-12, atol=1e-13)
    assert second.state.clock.seen.tolist() == [5, 5]
    assert all(layer.clock is second.state.clock for layer in second.state.layers)
    assert [type(layer).__name__ for layer in second.state.layers] == [
        type(layer).__name__ for layer in state.layers]


@pytest.mark.parametrize("kind", ["pre", "parallel"])
def test_losses_of_all_layers_leave_in_order(kind: str) -> None:
    moe = {"kind": "moe", "n_experts": 3, "top_k": 2, "balance_loss": 0.1}
    block = build(kind, layers=[moe, "gru", moe]).train()
    x = vectors()
    out = block(x)
    entering = block.norms[0](x)
    own = block.children_layers()[0](entering).losses
    assert own
    assert [loss.name for loss in out.losses] == [loss.name for loss in own] * 2
    for got, wanted in zip(out.losses, own, strict=False):
        assert_close(got.value, wanted.value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["pre", "post", "plain", "sandwich", "parallel"])
def test_padding_does_not_reach_real_tokens(kind: str) -> None:
    block, x = build(kind), vectors()
    count = torch.tensor([5, 2])
    dirty = x.clone()
    dirty[1, 2:] = torch.nan
    y = block(dirty, None, Span(count=count)).y
    assert_close(y[0], block(x[:1]).y[0], rtol=1e-12, atol=1e-13)
    assert_close(y[1, :2], block(x[1:, :2]).y[0], rtol=1e-12, atol=1e-13)
    assert y[1, 2:].abs().max() == 0


def test_norms_over_tokens_count_only_real_ones() -> None:
    block, x = build("pre", layers=[{"kind": "mlp", "d_ff": 5}], norm="batchnorm").train(), vectors()
    count = torch.tensor([5, 2])
    real = torch.cat([x[0], x[1, :2]])[None]
    assert_close(block(x, None, Span(count=count)).y[0], block(real).y[0, :5], rtol=1e-12, atol=1e-13)


def test_a_block_of_no_layers_or_of_what_is_no_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"layers: a block without layers does nothing. List at least one mixer or f"):
        build("pre", layers=[])
    with pytest.raises(ConfigError, match=r"block.layers.1.shared: no shared part is called 'x'. There are none."):
        parse_part(("block",), {"kind": "pre", "layers": ["gru", {"shared": "x"}]}).build(Dims(D, path="block"))
    norm = PreNormConfig.model_construct(layers=[RMSNormConfig()])
    with pytest.raises(ConfigError, match=r"block.layers.0: 'rmsnorm' builds a RMSNorm, which is no layer. Use a m"):
        norm.build(Dims(D, path="block"))
