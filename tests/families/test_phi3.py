"""Phi-3: its names of LongRoPE, its original length, and what its class refuses."""

from __future__ import annotations

from typing import Any

import pytest

from interop.huggingface.tiny_folders import stored
from weft.families.family import families

PHI3 = families()["phi3"]
LISTS = {"short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0]}


def raw(**values: Any) -> dict[str, Any]:
    without = ("rope_parameters", "rope_scaling", "original_max_position_embeddings")
    return {**{key: value for key, value in stored()["phi3"]["config"].items() if key not in without}, **values}


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
def test_three_names_of_one_scaling(name: str) -> None:
    config, facts = PHI3.read(raw(rope_scaling={"type": name, **LISTS}, original_max_position_embeddings=5))
    assert facts["rope_scaling"] == {"kind": "longrope", **LISTS, "original_length": 5, "extended_length": 32}
    written, _, problems = PHI3.write(config, {})
    assert not problems
    assert written["rope_parameters"]["rope_type"] == written["rope_scaling"]["rope_type"] == "longrope"
    assert written["original_max_position_embeddings"] == 5
    assert PHI3.read(written)[0] == config


def test_the_class_s_own_original_length_goes_before_one_inside() -> None:
    scaling = {"type": "longrope", **LISTS, "original_max_position_embeddings": 7}
    assert PHI3.read(raw(rope_scaling=scaling))[1]["rope_scaling"]["original_length"] == 4096


def test_what_the_class_refuses_is_not_written() -> None:
    linear, _ = PHI3.read(raw(rope_scaling={"type": "linear", "factor": 2.0}))
    assert PHI3.write(linear, {})[2] == ["rope_parameters: Phi3Config takes the scaling 'longrope' or none, not "
                                         "'linear'."]
    wide, _ = PHI3.read(raw(rope_scaling={"type": "su", **LISTS}, hidden_size=24, head_dim=4))
    assert PHI3.write(wide, {})[2] == ["head_dim: with 'longrope', Phi3Config takes heads of hidden_size / "
                                       "num_attention_heads = 8 features, not of 4."]
