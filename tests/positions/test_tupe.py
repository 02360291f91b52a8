"""TUPE against the oracle: A, R, an untied first token; the table's end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from by_hand import require_agreement
from oracles import relative_positions as oracle
from oracles import t5_bias
from positions.scored import CAUSAL, FULL, T, attention, maps, vectors
from weft.core.config import parse_part
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.t5 import T5
from weft.positions.tupe import Tupe, TupeConfig


def heads(table: Any, maps: Any) -> list[Any]:
    """Projections of the table's first rows, by head."""
    found: list[Any] = np.split(table[:T] @ maps.T, 4, axis=1)
    return found


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded"])
def test_tupe_a_is_the_oracle_s(backend: str) -> None:
    layer, x = attention({"kind": "tupe", "max_length": 9}, backend=backend), vectors()
    scheme: Any = layer.position

    def run(x: Any, qkv: Any, out: Any, table: Any, q_p: Any, k_p: Any) -> Any:
        own_q, own_k = heads(table, q_p), heads(table, k_p)
        return oracle.attention(x[0], *maps(qkv), out, 4, 2,
                                lambda h, q, k: oracle.tupe_scores(q, k, own_q[h], own_k[h]), CAUSAL)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, scheme.table.vectors, scheme.q.weight,
                                   scheme.k.weight], run)


def test_tupe_r_with_an_untied_first_token_is_the_oracle_s() -> None:
    relative = {"kind": "t5", "buckets": 8, "max_distance": 5, "bidirectional": True}
    position = {"kind": "tupe", "relative": relative, "first_token": "untied"}
    layer, x = attention(position, mask="bidirectional"), vectors()
    scheme: Any = layer.position
    assert isinstance(scheme.relation, T5)

    def run(x: Any, qkv: Any, out: Any, table: Any, q_p: Any, k_p: Any, theta: Any, buckets: Any) -> Any:
        own_q, own_k = heads(table, q_p), heads(table, k_p)
        bias = t5_bias.bias(buckets, range(T), range(T), max_distance=5)
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, lambda h, q, k: oracle.tupe_scores(
            q, k, own_q[h], own_k[h], bias[h], theta[:, h]), FULL)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, scheme.table.vectors, scheme.q.weight,
                                   scheme.k.weight, scheme.theta, scheme.relation.table], run)


def test_a_model_s_limit_is_its_shortest_table_s() -> None:
    def limit(*positions: Any) -> int | None:
        blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": position}]}
                  for position in positions]
        model: Any = parse_part(("model",), {"kind": "decoder", "vocab_size": 5, "d_model": 8, "context": 12,
                                             "blocks": blocks}).build(Dims(8))
        found: int | None = model.limit()
        return found

    assert limit("rope", "t5") is None
    assert limit("tupe") == 12
    assert limit({"kind": "tupe", "max_length": 30}, {"kind": "tupe", "max_length": 20}, "alibi") == 20


def test_a_document_beyond_the_table_is_refused_whole_and_in_steps() -> None:
    layer = attention({"kind": "tupe", "max_length": T})
    message = rf"a position lies outside tupe's table of {T} positions, 0 to 6. Give documents of at most 7 tokens, or"
    state = layer(vectors(), layer.init_state(1)).state
    for x, before in ((vectors(T + 1), None), (vectors(1), state)):
        with pytest.raises(InputError, match=message):
            layer(x, before)
    begins = torch.zeros(1, T + 1, dtype=torch.bool)
    begins[0, 3] = True
    layer(vectors(T + 1), None, Span(begins=begins))  # two documents, neither too long


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_length: a table of positions needs a length, and the model declares"):
        TupeConfig().build_for_heads(Dims(8), 2, 4)
    for kind in ("rope", "shaw"):
        with pytest.raises(ConfigError, match=rf"position.relative: '{kind}' does not add to scores by distance"):
            attention({"kind": "tupe", "relative": kind})
    with pytest.raises(ConfigError, match=r"'tupe' acts on scores, so it has no place outside attention."):
        TupeConfig().build(Dims(8))
    assert isinstance(attention({"kind": "tupe", "relative": "alibi"}).position, Tupe)
