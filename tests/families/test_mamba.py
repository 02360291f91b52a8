"""Mamba and Falcon-Mamba: sizes that two keys give, the authors' name of a tensor, and what the classes cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from interop.huggingface.tiny_folders import stored, write
from weft import api
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.model import ModelConfig
from weft.families.family import families

MAMBA, FALCON_MAMBA = families()["mamba"], families()["falcon_mamba"]
SIZES: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "vocab_size": 13}


def mixer(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of the mixer that a configuration gives."""
    found: dict[str, Any] = MAMBA.read(SIZES | raw)[0].dump()["blocks"][0]["of"][0]["layers"][0]
    return found


@pytest.mark.parametrize(("keys", "expand"), [
    ({}, 2), ({"expand": 3}, 3), ({"expand": 16, "intermediate_size": 48}, 2), ({"intermediate_size": 24}, 1)])
def test_the_inner_width_takes_precedence(keys: dict[str, int], expand: int) -> None:
    assert mixer(keys)["expand"] == expand


@pytest.mark.parametrize(("keys", "rank"), [({}, 2), ({"time_step_rank": "auto"}, 2), ({"time_step_rank": 5}, 5)])
def test_the_rank_may_follow_from_the_width(keys: dict[str, Any], rank: int) -> None:
    assert mixer(keys)["rank"] == rank


@pytest.mark.parametrize(("keys", "message"), [
    ({"intermediate_size": 50}, r"intermediate_size: 50 is no multiple of hidden_size 24"),
    ({"time_step_rank": "many"}, r"time_step_rank: 'many' is not a whole number"),
    ({"hidden_act": "gelu"}, r"hidden_act: 'gelu', but only 'silu' can be read.*followed by silu"),
    ({"state_sise": 4}, r"state_sise.*state_size"),
])
def test_what_cannot_be_read(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MAMBA.read(SIZES | keys)


def test_a_rank_that_follows_from_the_width_is_written_as_a_number() -> None:
    data: dict[str, Any] = MAMBA.read(SIZES)[0].dump()
    data["blocks"][0]["of"][0]["layers"][0]["rank"] = None
    config = parse_part(("model",), data)
    assert isinstance(config, ModelConfig)
    keys, _, problems = MAMBA.write(config, {})
    assert problems == [] and keys["time_step_rank"] == 2 and keys["intermediate_size"] == 48


def test_norms_of_steps_are_falcon_mambas_alone() -> None:
    config = FALCON_MAMBA.read(SIZES)[0]
    assert any("norm" in problem for problem in MAMBA.write(config, {})[2])


def test_the_authors_name_of_the_embedding_is_read(tmp_path: Path) -> None:
    tensors = write(tmp_path, "mamba")
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    case = stored()["mamba"]
    found = api.score(tmp_path, [case["row"]], logits=True).logits
    assert found is not None
    wanted = torch.tensor(case["logits"])
    torch.testing.assert_close(found[0][-len(wanted):], wanted, atol=5e-5, rtol=0)


JAMBA = families()["jamba"]
SMALL: dict[str, Any] = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6,
                         "intermediate_size": 20, "num_experts": 3}


@pytest.mark.parametrize(("keys", "attends", "sparse"), [
    ({}, [4], [1, 3, 5]), ({"attn_layer_period": 3, "attn_layer_offset": 1}, [1, 4], [1, 3, 5]),
    ({"num_experts": 1}, [4], []), ({"attn_layer_offset": 7}, [], [1, 3, 5])])
def test_which_layers_have_attention_and_experts(keys: dict[str, int], attends: list[int], sparse: list[int]) -> None:
    config, facts = JAMBA.read(SMALL | keys)
    assert [index for index, has in enumerate(facts["attends"]) if has] == attends
    assert [index for index, has in enumerate(facts["sparse"]) if has] == sparse
    raw, _, problems = JAMBA.write(config, {})
    assert problems == [] and JAMBA.read(raw)[0] == config


def test_layers_at_unequal_distances_cannot_be_written() -> None:
    config = JAMBA.read(SMALL)[0]
    data = config.dump()
    data["blocks"].append(data["blocks"][-1])
    moved = parse_part(("model",), data)
    assert isinstance(moved, ModelConfig)
    assert any("do not lie at equal distances" in problem for problem in JAMBA.write(moved, {})[2])


def test_an_offset_beyond_the_period_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"attn_layer_offset: 8 is not below attn_layer_period, 8"):
        JAMBA.read(SMALL | {"attn_layer_offset": 8})
