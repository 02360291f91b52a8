"""Which lengths share a state, asked of whole models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from weft.core.config import parse_part
from weft.core.declarations import Declared, Trait
from weft.core.layer import Part
from weft.positions.regimes import regimes


def model(*positions: Any, **fields: Any) -> nn.Module:
    layers = [{"kind": "attention", "n_heads": 2, "position": position} for position in positions]
    return parse_part(("model",), {"kind": "decoder", "vocab_size": 5, "d_model": 8, "context": 16,
                                   "blocks": [{"kind": "pre", "layers": [layer]} for layer in layers], **fields}
                      ).build(None)


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "rope", "scaling": {"kind": kind, **fields}}


def longrope(original_length: int) -> dict[str, Any]:
    return rope("longrope", short_factor=[1.0, 1.5], long_factor=[1.0, 4.0], original_length=original_length, factor=2)


DYNAMIC = rope("dynamic", factor=2.0, original_length=3)


def test_a_state_serves_until_the_rotation_changes() -> None:
    assert regimes(model("rope", rope("linear", factor=2.0)), 6).tolist() == [0] * 7
    assert regimes(model(longrope(3)), 6).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert regimes(model(DYNAMIC), 6).tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert regimes(model("rope", position={"kind": "fraction", "join": "add"}), 3).tolist() == [0, 1, 2, 3]


def test_layers_that_differ_count_each_change_once() -> None:
    assert regimes(model(longrope(3), "rope", longrope(3), longrope(5)), 7).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert regimes(model(longrope(4), DYNAMIC), 6).tolist() == [0, 0, 0, 0, 1, 2, 3]


def test_an_encoder_s_rotation_is_its_own_affair() -> None:
    inner = {"kind": "attention", "n_heads": 2, "position": DYNAMIC}
    blocks = [{"kind": "pre", "layers": ["gru", {"kind": "cross_attention", "n_heads": 2}]}]
    encoder = {"kind": "encoder", "vocab_size": 5, "d_model": 8,
               "blocks": [{"kind": "pre", "layers": [{**inner, "mask": "bidirectional"}]}]}
    both = parse_part(("model",), {"kind": "encoder_decoder", "vocab_size": 5, "d_model": 8, "encoder": encoder,
                                   "blocks": blocks}).build(None)
    assert regimes(both, 6).tolist() == [0] * 7


def test_a_part_that_only_holds_the_trait_shares_no_state_between_lengths() -> None:
    class Silent(Part):
        def declares(self) -> Declared:
            return replace(super().declares(), traits=frozenset({Trait.DECLARED_LENGTH}))

    assert regimes(nn.Sequential(nn.Linear(1, 1), Silent()), 3).tolist() == [0, 1, 2, 3]
    assert torch.equal(regimes(Silent(), 0), torch.tensor([0]))
