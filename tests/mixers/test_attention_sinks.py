"""Learned sinks: against the oracle by every form that has them, in decoding, and with a bounded buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import fused_attention, randomise, require_agreement
from oracles import masks
from weft.core.config import parse
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.part_config import Dims
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.self_attention import RollingState
from weft.ops.attention import ATTENTION, ROWS
from weft.ops.forms import forced

D, T = 6, 9
RULES = {"causal": masks.causal, "causal & window(3)": lambda i, j: masks.window(i, j, 3),
         "causal & (window(3) | global(0, 1))": lambda i, j: j <= i and (i - j < 3 or j < 2)}


def build(**fields: Any) -> Attention:
    layer = parse(AttentionConfig, {"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "sinks": True, **fields}).build(Dims(D))
    randomise(layer.double().eval())
    return layer


def vectors(steps: int = T) -> Tensor:
    return torch.randn(1, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("backend", ["auto", "reference", "banded"])
@pytest.mark.parametrize("mask", RULES)
def test_a_sink_joins_the_denominator_of_its_head(backend: str, mask: str) -> None:
    layer, x = build(mask=mask, backend=backend), vectors()

    def run(x: Any, qkv: Any, out: Any, sinks: Any) -> Any:
        seen = masks.dense(RULES[mask], range(T), range(T))
        return fused_attention(4, 2, 3, mask=seen, sinks=sinks)(x[0], qkv, out)[None]

    assert layer.sinks is not None
    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.sinks], run)


def test_a_cap_and_a_scale_leave_sinks_alone() -> None:
    layer, x = build(scores={"softcap": 0.4, "scale": 0.9}), vectors()

    def run(x: Any, qkv: Any, out: Any, sinks: Any) -> Any:
        seen = masks.dense(masks.causal, range(T), range(T))
        return fused_attention(4, 2, 3, mask=seen, sinks=sinks, softcap=0.4, scale=0.9)(x[0], qkv, out)[None]

    assert layer.sinks is not None
    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.sinks], run)


def test_they_start_at_zero_one_for_each_head_and_only_where_they_are_asked_for() -> None:
    layer = parse(AttentionConfig, {"n_heads": 3, "sinks": True}).build(Dims(D))
    assert layer.sinks is not None
    assert torch.equal(layer.sinks.detach(), torch.zeros(3))
    assert parse(AttentionConfig, {"n_heads": 3}).build(Dims(D)).sinks is None


@pytest.mark.parametrize("in_place", [False, True])
def test_decoding_keeps_the_window_and_nothing_for_sinks(*, in_place: bool) -> None:
    layer, x = build(mask="causal & window(3)", position="alibi"), vectors(20)
    whole, state, found = layer(x).y, layer.init_state(1), []
    for piece in x.split([1, 5, 1, 1, 10, 1, 1], 1):
        with torch.set_grad_enabled(not in_place):
            out = layer(piece, state)
        state = out.state
        assert isinstance(state, RollingState)
        assert state.keys.shape[2] == 3
        found.append(out.y)
    assert_close(torch.cat(found, 1), whole, rtol=1e-11, atol=1e-12)


def test_long_rows_train_by_blocks_and_a_form_without_sinks_is_not_chosen() -> None:
    layer, x = build(mask="causal & window(3)"), vectors(2 * ROWS)
    seen: list[Any] = []
    layer.call = lambda *given, call=layer.call: seen.append(call(*given)) or seen[-1]  # type: ignore[method-assign]
    y = layer(x).y
    assert ATTENTION.choose(seen[0]).form.name == "banded"
    with forced({"attention": "reference"}):
        assert_close(y, layer(x).y, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        layer(x[:, :1])
        chosen = ATTENTION.choose(seen[-1])
    assert chosen.form.name == "reference"
    assert {"grouped_rows: it has no sinks", "sdpa: it has no sinks"} <= set(chosen.passed)
    with forced({"attention": "sdpa"}), pytest.raises(UnsupportedError, match="it has no sinks"):
        layer(x)


def test_weights_of_a_head_with_a_large_sink_vanish() -> None:
    layer, x = build(), vectors()
    assert layer.sinks is not None
    with torch.no_grad():
        layer.sinks.copy_(torch.tensor([60.0, -60.0, 60.0, -60.0]))
        layer.output.weight.copy_(torch.eye(12, dtype=torch.float64)[:D])  # shows the first two heads
        plain = parse(AttentionConfig, {"n_heads": 4, "n_kv_heads": 2, "d_head": 3}).build(Dims(D)).double()
        plain.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "sinks"})
    y = layer(x).y.detach()
    assert float(y[..., :3].abs().max()) < 1e-20
    np.testing.assert_allclose(y[..., 3:], plain(x).y.detach()[..., 3:], rtol=1e-12)


@pytest.mark.parametrize("backend", ["sdpa", "grouped_rows"])
def test_a_named_form_without_sinks_is_refused(backend: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(AttentionConfig, {"n_heads": 2, "sinks": True, "backend": backend}).build(Dims(D, path="mixer"))
    assert caught.value.problems == (f"mixer.backend: the form {backend!r} has no sinks. Use 'auto', 'native', "
                                     "'banded' or 'reference'.",)
