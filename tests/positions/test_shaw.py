"""Shaw's relative vectors against the oracle, keys and values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from by_hand import require_agreement
from oracles import relative_positions as oracle
from positions.scored import CAUSAL, FULL, attention, maps, vectors
from weft.core.clock import Keys
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import WHOLE
from weft.positions.shaw import Shaw, ShawConfig, ShawKeys


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded"])
def test_keys_are_the_oracle_s(backend: str) -> None:
    layer, x = attention({"kind": "shaw", "max_distance": 2, "on_values": False}, backend=backend), vectors()
    assert isinstance(layer.position, ShawKeys)

    def run(x: Any, qkv: Any, out: Any, keys: Any) -> Any:
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, lambda h, q, k: oracle.shaw_scores(q, k, keys, 2),
                                CAUSAL)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.position.keys], run)


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_keys_and_values_are_the_oracle_s(mask: str) -> None:
    layer, x = attention({"kind": "shaw", "max_distance": 2}, mask=mask), vectors()
    assert isinstance(layer.position, Shaw)

    def run(x: Any, qkv: Any, out: Any, keys: Any, values: Any) -> Any:
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, lambda h, q, k: oracle.shaw_scores(q, k, keys, 2),
                                CAUSAL if mask == "causal" else FULL,
                                lambda w: oracle.shaw_values(w, values, 2))[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.position.keys,
                                   layer.position.values], run)


def test_many_small_weights_add_up_in_half_precision() -> None:
    """4,096 weights of 2^-12 in one row of the table: bfloat16 alone would stop adding at 2^-4."""
    layer = attention({"kind": "shaw", "max_distance": 1}, mask="bidirectional")
    scheme = layer.position.to(torch.bfloat16)
    assert isinstance(scheme, Shaw)
    with torch.no_grad():
        scheme.values.fill_(1.0)
    ticks = WHOLE.resolve(None, torch.zeros(1, 4096)).ticks
    weights = torch.full((1, 1, 1, 4096), 2.0 ** -12, dtype=torch.bfloat16)
    one = WHOLE.resolve(None, torch.zeros(1, 1)).ticks
    assert scheme.value_terms(weights, one, Keys.of(ticks)).flatten().tolist() == [1.0, 1.0]


def test_values_of_another_size_and_a_place_outside_attention_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"d_value: 'shaw' adds vectors of the keys' size 2 to values of size 5."):
        attention("shaw", d_value=5)
    for backend in ("sdpa", "banded"):
        with pytest.raises(ConfigError, match=rf"backend: the form '{backend}' does not compute attention weights"):
            attention("shaw", backend=backend)
    attention({"kind": "shaw", "on_values": False}, d_value=5, backend="banded")
    with pytest.raises(ConfigError, match=r"'shaw' acts on scores and values, so it has no place outside attention."):
        ShawConfig().build(Dims(4))
