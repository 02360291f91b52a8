"""T5's bias against the oracle, its buckets, its scale, one table for all layers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from by_hand import fused_attention, require_agreement
from oracles import t5_bias
from positions.scored import CAUSAL, FULL, T, attention, vectors
from weft.core.clock import Keys
from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.t5 import T5, T5Config


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded"])
@pytest.mark.parametrize("scaled", [False, True])
def test_values_and_gradients_are_the_oracle_s(backend: str, scaled: bool) -> None:
    layer, x = attention({"kind": "t5", "buckets": 8, "max_distance": 5, "scaled": scaled}, backend=backend), vectors()
    assert isinstance(layer.position, T5)

    def run(x: Any, qkv: Any, out: Any, table: Any) -> Any:
        bias = t5_bias.bias(table, range(T), range(T), bidirectional=False, max_distance=5)
        return fused_attention(4, 2, 2, mask=CAUSAL, bias=bias, scale=None if scaled else 1.0)(x[0], qkv, out)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.position.table], run)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_both_ways_half_of_the_buckets_are_for_later_keys(backend: str) -> None:
    position = {"kind": "t5", "buckets": 8, "max_distance": 5, "bidirectional": True, "scaled": False}
    layer, x = attention(position, mask="bidirectional", backend=backend), vectors()
    assert isinstance(layer.position, T5)

    def run(x: Any, qkv: Any, out: Any, table: Any) -> Any:
        bias = t5_bias.bias(table, range(T), range(T), max_distance=5)
        return fused_attention(4, 2, 2, mask=FULL, bias=bias, scale=1.0)(x[0], qkv, out)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.position.table], run)


def test_by_default_a_bias_of_zero_changes_nothing() -> None:
    """Scores are divided as without a bias, since the queries are the same."""
    biased, plain, x = attention("t5"), attention("none"), vectors()
    plain.load_state_dict({name: value for name, value in biased.state_dict().items() if name != "position.table"})
    torch.nn.init.zeros_(biased.position.table)
    torch.testing.assert_close(biased(x).y, plain(x).y, rtol=0, atol=1e-12)  # one sum of a zero more, in float64


@pytest.mark.parametrize(("bidirectional", "buckets", "longest"), [(True, 32, 128), (False, 32, 128), (False, 10, 64),
                                                                    (True, 20, 64), (False, 2, 3)])
def test_every_bucket_is_the_oracle_s(bidirectional: bool, buckets: int, longest: int) -> None:
    scheme = T5Config(buckets=buckets, max_distance=longest, bidirectional=bidirectional).build_for_heads(Dims(4), 1, 4)
    found = scheme.bucket(torch.arange(-300, 301)).tolist()
    assert found == [t5_bias.bucket(-distance, bidirectional, buckets, longest) for distance in range(-300, 301)]


def test_a_shared_table_is_one_for_all_layers() -> None:
    shared = {"shared": {"bias": {"kind": "t5", "buckets": 4}}}
    layers = {own: parse_part(("model",), {
        "kind": "decoder", "vocab_size": 5, "d_model": 8, "context": 8, **(shared if own == "shared" else {}),
        "blocks": [{"repeat": 3, "of": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": (
            {"shared": "bias"} if own == "shared" else {"kind": "t5", "buckets": 4})}]}]}]}).build(Dims(8))
        for own in ("shared", "each")}
    tables = {own: {id(part.table) for part in model.modules() if isinstance(part, T5)}
              for own, model in layers.items()}
    assert (len(tables["shared"]), len(tables["each"])) == (1, 3)


def test_what_does_not_fit_is_refused() -> None:
    for fields, message in (
            ({"buckets": 7}, r"buckets: 7 buckets do not divide into 2 equal parts. Give a multiple of 2."),
            ({"buckets": 6, "bidirectional": True}, r"buckets: 6 buckets do not divide into 4 .* multiple of 4."),
            ({"max_distance": 16}, r"max_distance: 16 tokens leave none for buckets beyond the 16 .* more than 16")):
        with pytest.raises(ConfigError, match=message):
            parse(T5Config, fields)
    with pytest.raises(ConfigError, match=r"position: 't5' acts on scores, so it has no place outside attention."):
        T5Config().build(Dims(4, path="position"))
    x = torch.zeros(1, 2, 1, 4)
    ticks = Span(coordinates=torch.tensor([[0.0, 0.5]])).resolve(None, x).ticks
    with pytest.raises(InputError, match=r"span.coordinates: t5 needs whole positions, got coordinates of torch.float"):
        T5Config().build_for_heads(Dims(4), 1, 4).bias(x, x, ticks, Keys.of(ticks))
