"""Falcon: three architectures in one class, and what it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.model import ModelConfig
from weft.families.family import families

FALCON = families()["falcon"]
SIZES: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 2, "vocab_size": 13}
OLD: dict[str, Any] = {"hidden_size": 24, "n_head": 6, "n_layer": 2, "vocab_size": 13}


def changed(raw: dict[str, Any], *path: str | int, value: object) -> list[str]:
    """What does not fit after one change in Weft's configuration."""
    data: Any = FALCON.read(raw)[0].dump()
    place = data["blocks"][0]["of"][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    config = parse_part(("model",), data)
    assert isinstance(config, ModelConfig)
    return FALCON.write(config, {})[2]


@pytest.mark.parametrize(("old", "new"), [
    ({"model_type": "RefinedWebModel", "multi_query": True, "parallel_attn": True}, {}),
    ({"model_type": "RefinedWeb", "n_head_kv": 2, "parallel_attn": True},
     {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ({"model_type": "RefinedWebModel", "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
     {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    ({"n_embed": 24, "ffn_hidden_size": 96, "ff_factor": 4}, {})], ids=["7B", "40B", "RW", "sizes"])
def test_first_spellings(old: dict[str, Any], new: dict[str, Any]) -> None:
    found = FALCON.read(OLD | old | {"apply_residual_connection_post_layernorm": False})[0]
    assert found == FALCON.read(SIZES | new)[0]


@pytest.mark.parametrize(("values", "message"), [
    ({"new_decoder_architecture": True, "parallel_attn": False},
     "parallel_attn: false, but with new_decoder_architecture attention and feed-forward are parallel"),
    ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn: 2, but such a block has 1, without new_decoder"),
    ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 3}, "3, but such a block has 1 or 2"),
    ({"multi_query": False, "num_kv_heads": 2}, "num_kv_heads: 2, but without new_decoder_architecture and multi_query "
                                                "each of 6 heads has its own"),
    ({"apply_residual_connection_post_layernorm": True}, "The class has no such residual"),
    ({"num_attention_heads": 5}, "5 heads do not divide")])
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FALCON.read(SIZES | values)


SEQUENTIAL = {"multi_query": False, "parallel_attn": False}


def test_what_no_switch_says_is_not_written() -> None:
    assert changed(SIZES | SEQUENTIAL, "layers", 0, "n_kv_heads", value=2) == [
        "parallel_attn: 2 key/value heads for 6 heads: in sequential blocks the class has 1 or 6."]
    assert changed(SIZES | SEQUENTIAL, "layers", 0, "bias", value="qkv") == [
        "bias: attention has biases 'qkv', and with this feed-forward the file says 'none'; it has one switch for "
        "both."]
    assert FALCON.write(FALCON.read(SIZES | {"hidden_size": 30, "alibi": True})[0], {})[2] == [
        "hidden_size: FalconConfig refuses heads of 5 features, an odd number."]


def test_groups_of_heads_with_one_norm_are_the_new_architecture() -> None:
    raw, _, problems = FALCON.write(FALCON.read(SIZES | {"new_decoder_architecture": True, "num_kv_heads": 3,
                                                         "num_ln_in_parallel_attn": 1})[0], {})
    assert not problems
    assert (raw["new_decoder_architecture"], raw["num_ln_in_parallel_attn"], raw["multi_query"]) == (True, 1, False)
