"""DeBERTa's disentangled scores against the oracle: v1, v2 and v3, one table for all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from by_hand import require_agreement
from oracles import relative_positions as oracle
from positions.scored import CAUSAL, FULL, attention, maps, vectors
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.positions.deberta import DebertaConfig, log_position
from weft.positions.position_table import PositionTable


def deberta(rows: int, **fields: Any) -> dict[str, Any]:
    table = {"kind": "position_table", "rows": rows, **fields.pop("table", {})}
    return {"kind": "deberta", "table": table, **fields}


def scores(k_r: Any, q_r: Any, longest: int | None = None) -> Any:
    """Of head h, the projected tables having as many heads as there are."""
    def own(table: Any, h: int) -> Any:
        return None if table is None else np.split(table, table.shape[1] // 2, axis=1)[h * table.shape[1] // 8]

    return lambda h, q, k: oracle.deberta_scores(q, k, own(k_r, h), own(q_r, h), longest)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded"])
def test_v1_is_the_oracle_s(backend: str) -> None:
    layer, x = attention(deberta(6), backend=backend), vectors()
    scheme: Any = layer.position
    assert scheme.k.bias is None

    def run(x: Any, qkv: Any, out: Any, table: Any, k_p: Any, q_p: Any, q_bias: Any) -> Any:
        own = scores(table @ k_p.T, table @ q_p.T + q_bias)
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, own, CAUSAL)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, scheme.table.vectors, scheme.k.weight,
                                   scheme.q.weight, scheme.q.bias], run)


def test_v3_shares_the_content_s_projections_and_norms_its_table() -> None:
    position = deberta(8, table={"norm": "layernorm"}, max_distance=6, projections="content")
    layer, x = attention(position, mask="bidirectional", bias="qkv"), vectors()
    scheme: Any = layer.position
    assert (scheme.q, scheme.k) == (None, None)

    def run(x: Any, qkv: Any, bias: Any, out: Any, table: Any, gain: Any, shift: Any) -> Any:
        spread = np.sqrt(table.var(1, keepdims=True) + 1e-5)
        rows = (table - table.mean(1, keepdims=True)) / spread * gain + shift
        (w_q, w_k, _), biases = maps(qkv), np.split(bias, [8, 12])
        own = scores(rows @ w_k.T + biases[1], rows @ w_q.T + biases[0], 6)
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, own, FULL, biases=biases)[None]

    norm = scheme.table.norm
    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.qkv.bias, layer.output.weight, scheme.table.vectors,
                                   norm.weight, norm.bias], run)


@pytest.mark.parametrize("terms", ["c2p", "p2c"])
def test_one_term_alone_has_its_own_scale(terms: Any) -> None:
    layer, x = attention(deberta(6, terms=terms, projections="own_biased")), vectors()
    scheme: Any = layer.position
    own = scheme.k if terms == "c2p" else scheme.q
    assert (scheme.q is None) == (terms == "c2p")

    def run(x: Any, qkv: Any, out: Any, table: Any, weight: Any, bias: Any) -> Any:
        rows = table @ weight.T + bias
        pair = (rows, None) if terms == "c2p" else (None, rows)
        return oracle.attention(x[0], *maps(qkv), out, 4, 2, scores(*pair), CAUSAL)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, scheme.table.vectors, own.weight,
                                   own.bias], run)


@pytest.mark.parametrize(("span", "longest"), [(256, 512), (8, 20), (32, 128), (2, 3)])
def test_every_log_position_is_the_oracle_s(span: int, longest: int) -> None:
    found = log_position(torch.arange(-700, 701), span, longest).tolist()
    assert found == [oracle.log_position(distance, span, longest) for distance in range(-700, 701)]


def test_a_shared_table_is_one_for_layers_with_projections_of_their_own() -> None:
    position = {"kind": "deberta", "table": {"shared": "relative"}}
    model = parse_part(("model",), {
        "kind": "decoder", "vocab_size": 5, "d_model": 8, "context": 8,
        "shared": {"relative": {"kind": "position_table", "rows": 6}},
        "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": [
            {"kind": "attention", "n_heads": 2, "position": position}]}]}]}).build(Dims(8))
    names = [name for name, _ in model.named_parameters()]
    assert len({id(part) for part in model.modules() if isinstance(part, PositionTable)}) == 1
    assert sum(name.endswith("position.k.weight") for name in names) == 2


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"position.table: 7 rows are not as many on both sides of a"):
        attention(deberta(7))
    with pytest.raises(ConfigError, match=r"position.max_distance: 5 tokens leave no distance for logarithmic buckets: "
                                          r"4 have a row each. Give at least 6, or fewer rows."):
        attention(deberta(16, max_distance=5))
    with pytest.raises(ConfigError, match=r"'deberta' acts on scores, so it has no place outside attention."):
        DebertaConfig().build(Dims(8))
