"""Gated attention: attention's own results, times the gate, before the output projection."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from weft.core.config import parse_part
from weft.core.part_config import Dims
from weft.core.probes import probe

SIZES = {"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "d_value": 5, "position": "alibi"}


@pytest.mark.parametrize("bias", ["none", "qkv"])
def test_results_of_heads_are_gated_before_they_are_mixed(bias: str) -> None:
    """Attention with an output projection that changes nothing gives the heads' results."""
    torch.manual_seed(0)
    gated = parse_part(("mixer",), {"kind": "gated_attention", "bias": bias, **SIZES}).build(Dims(20)).double()
    plain = parse_part(("mixer",), {"kind": "attention", "bias": bias, **SIZES}).build(Dims(20)).double()
    with torch.no_grad():
        plain.qkv.load_state_dict(gated.qkv.state_dict())
        plain.output.weight.copy_(torch.eye(20))
    x = torch.randn(2, 7, 20, dtype=torch.float64)
    gate = x @ gated.gate.weight.T + (0 if gated.gate.bias is None else gated.gate.bias)
    wanted = (plain(x).y / (1 + torch.exp(-gate))) @ gated.output.weight.T
    assert_close(gated(x).y, wanted, rtol=1e-12, atol=1e-12)
    assert (gated.gate.bias is None) == (bias == "none")


def test_weights_are_seen_through_the_point() -> None:
    torch.manual_seed(0)
    layer = parse_part(("mixer",), {"kind": "gated_attention", **SIZES}).build(Dims(20))
    x = torch.randn(1, 4, 20)
    plain = layer(x).y
    with probe(layer, "weights") as seen:
        assert_close(layer(x).y, plain)
    assert_close(seen["weights"][0].sum(-1), torch.ones(1, 4, 4))
