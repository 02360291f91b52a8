"""Transformer-XL's relative positions against the oracle, and its memory as a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from by_hand import require_agreement
from oracles import relative_positions as oracle
from positions.scored import CAUSAL, T, attention, maps, vectors
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.transformer_xl import TransformerXlConfig


def reference(positions: Any, mask: Any, clamp: int | None, base: float) -> Any:
    def run(x: Any, qkv: Any, out: Any, u: Any, v: Any, w_r: Any) -> Any:
        rows = np.split(w_r, 4)
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, lambda h, q, k: oracle.transformer_xl_scores(
            q, k, u[h], v[h], rows[h], positions, positions, clamp, base), mask)[None]

    return run


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded"])
@pytest.mark.parametrize(("clamp", "base"), [(None, 10000.0), (3, 50.0)])
def test_values_and_gradients_are_the_oracle_s(backend: str, clamp: int | None, base: float) -> None:
    layer, x = attention({"kind": "transformer_xl", "max_distance": clamp, "base": base}, backend=backend), vectors()
    scheme: Any = layer.position
    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, scheme.u, scheme.v, scheme.r.weight],
                      reference(range(T), CAUSAL, clamp, base))


def test_distances_may_be_fractions() -> None:
    layer, x = attention("transformer_xl"), vectors()
    scheme: Any = layer.position
    places = torch.rand(1, T, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 40
    y = layer(x, None, Span(coordinates=places)).y
    require_agreement(y, [x, layer.qkv.weight, layer.output.weight, scheme.u, scheme.v, scheme.r.weight],
                      reference(places[0].tolist(), CAUSAL, None, 10000.0))


@pytest.mark.parametrize("clamp", [None, 3])
@pytest.mark.parametrize(("mask", "least"), [("causal & window(5)", lambda i: i - 4),
                                             ("segments(3, 4)", lambda i: i // 3 * 3 - 4)])
def test_a_state_is_the_memory_of_earlier_segments(clamp: int | None, mask: str, least: Any) -> None:
    """Segments of three tokens with the four keys before each query (the released code's same_length), and before each
    segment."""
    layer = attention({"kind": "transformer_xl", "max_distance": clamp}, mask=mask)
    scheme: Any = layer.position
    x, state, found = vectors(12), layer.init_state(1), []
    for segment in x.split(3, 1):
        out = layer(segment, state)
        found.append(out.y)
        state = out.state
    window = np.array([[least(i) <= j <= i for j in range(12)] for i in range(12)])
    arguments = [x, layer.qkv.weight, layer.output.weight, scheme.u, scheme.v, scheme.r.weight]
    require_agreement(torch.cat(found, 1), arguments, reference(range(12), window, clamp, 10000.0))


def test_far_positions_keep_their_precision() -> None:
    """Distances at position 100,000, worked out as two angles: float32 rounds each by up to 0.004 radians."""
    layer = attention("transformer_xl", mask="causal & window(5)")
    x = vectors(9)
    near, far = (layer.float()(x.float(), None, Span(coordinates=torch.arange(9)[None] + start)).y.detach()
                 for start in (0, 100_000))
    assert_close(near, far, rtol=0, atol=0.02)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sinusoids come in pairs of features, d_model is 7. Choose an even"):
        TransformerXlConfig().build_for_heads(Dims(7), 2, 4)
    with pytest.raises(ConfigError, match=r"'transformer_xl' acts on scores, so it has no place outside attention."):
        TransformerXlConfig().build(Dims(8))
    layer = attention({"kind": "transformer_xl", "max_distance": 3})
    with pytest.raises(InputError, match=r"span.coordinates: transformer_xl with clamp needs whole positions, got"):
        layer(vectors(), None, Span(coordinates=torch.rand(1, T)))
