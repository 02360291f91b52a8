"""What the keys of Gemma 2 and 3, OLMo, Granite, Qwen's experts and others cannot say or be read as, and which class a
model is written for that several could hold."""

from __future__ import annotations

import re
from typing import Any

import pytest

from interop.huggingface.tiny_folders import stored
from weft.core.errors import ConfigError
from weft.core.model import ModelConfig
from weft.families.family import families
from weft.families.template import build_config
from weft.interop.huggingface.writing import fit

NAMES = ("cohere", "gemma2", "gemma3_text", "glm4", "gpt_bigcode", "granite", "olmo2", "olmo3", "qwen2_moe",
         "qwen3_moe", "qwen3_next", "smollm3", "stablelm", "starcoder2")


def raw(name: str, **values: Any) -> dict[str, Any]:
    return {**stored()[name]["config"], **values}


def changed(name: str, **values: Any) -> ModelConfig:
    return build_config(families()[name].template, {**families()[name].read(raw(name))[1], **values})


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_written_as_it_is_read_and_for_its_own_class(name: str) -> None:
    config = families()[name].read(raw(name))[0]
    written = fit(config, {}, first=name)
    assert written.family.name == name
    assert families()[name].read(written.raw)[0] == config


@pytest.mark.parametrize(("name", "values", "message"), [
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar: 0.0, but scores are divided by its root."),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention: True, but only None or False"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types: 1 types for 2 layers."),
    ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping: 2.0, but only None can be read. Its "
                                                     "class has the key and caps no scores."),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters: rope_theta, where only mappings for "
                                                              "full_attention and sliding_attention can be read."),
    ("olmo3", {"rope_parameters": None, "rope_theta": 3e5}, "rope_theta: 300000.0; versions of transformers disagree"),
    ("cohere", {"use_qk_norm": True}, "use_qk_norm: True, but only False or None can be read. It gives every head"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm: True, but only False or None can be read. It gives every head"),
    ("granite", {"logits_scaling": 0.0}, "logits_scaling: 0.0, but logits are divided by it."),
    ("qwen2_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step: 0, but it counts layers from one with experts"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: [1], which is not 0 or 1 for each of 2 layers."),
    ("smollm3", {"layer_types": ["sliding_attention"] * 2}, "layer_types: some are sliding_attention, but"),
    ("starcoder2", {"norm_type": "rms"}, "norm_type: 'rms', but only 'layer_norm' or None can be read."),
    ("glm4", {"partial_rotary_factor": 0.4, "rope_parameters": None}, "partial_rotary_factor: 0.4 gives 3 rotary of 8"),
    ("gpt_bigcode", {"add_cross_attention": True}, "add_cross_attention: True, but only False or None can be read.")])
def test_what_cannot_be_read_is_said(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        families()[name].read(raw(name, **values))


@pytest.mark.parametrize(("name", "values", "message"), [
    ("gemma2", {"scale": 0.3}, "query_pre_attn_scalar: scores are multiplied by 0.3, which is not one over the root"),
    ("gemma2", {"masks": ["causal & window(3)", "causal & window(4)"]}, "sliding_window: layers have windows of 3, 4"),
    ("gemma2", {"embedding_scale": 2.0}, "embeddings are scaled by 2.0; this family scales them by sqrt(hidden_size)"),
    ("gemma3_text", {"rope_bases": [5.0, 6.0], "masks": ["causal", "causal"]}, "rope_parameters: layers of the type "
                                                                               "full_attention differ in their bases"),
    ("granite", {"embedding_scale": "sqrt_width"}, "embedding_multiplier: the file has numbers, not 'sqrt_width'."),
    ("qwen3_moe", {"sparse": [False, False]}, "mlp_only_layers: no layer has experts, so their number and sizes"),
    ("smollm3", {"turned": [False, False]}, "no_rope_layers: no layer has rotary positions, so their base is not"),
    ("starcoder2", {"mlp_bias": False}, "use_bias: attention has biases on 'all' and the feed-forward none;"),
    ("gpt_bigcode", {"n_heads": 15, "d_head": 1, "n_kv_heads": 3}, "multi_query: 3 key/value heads of 15; the format")])
def test_what_cannot_be_written_is_said(name: str, values: dict[str, Any], message: str) -> None:
    problems = families()[name].write(changed(name, **values), {})[2]
    assert any(problem.startswith(message) for problem in problems), problems


@pytest.mark.parametrize(("name", "values", "windowed"), [
    ("gemma2", {}, [0, 2, 4, 6]), ("gemma3_text", {}, [0, 1, 3, 4, 6, 7]),
    ("gemma3_text", {"sliding_window_pattern": None}, [0, 1, 2, 3, 4, 6, 7]), ("olmo3", {}, [0, 1, 2, 4, 5, 6]),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 4}, [0, 2]),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 3, "no_rope_layers": None, "no_rope_layer_interval": 3},
     [2, 5])])
def test_which_layers_have_a_window_where_the_file_does_not_list_them(name: str, values: dict[str, Any],
                                                                      windowed: list[int]) -> None:
    given = {"num_hidden_layers": 8, "layer_types": None, "sliding_window_pattern": 3, **values}
    if name != "gemma3_text":
        del given["sliding_window_pattern"]
    masks = families()[name].read(raw(name, **given))[1]["masks"]
    assert [index for index, mask in enumerate(masks) if mask == "causal & window(3)"] == windowed
    assert set(masks) == {"causal", "causal & window(3)"}


def test_a_window_of_its_own_base_goes_into_the_old_keys_too() -> None:
    found = families()["gemma3_text"].write(changed("gemma3_text", rope_bases=[20.0, 500.0]), {})[0]
    assert (found["rope_local_base_freq"], found["rope_theta"]) == (20.0, 500.0)
    old = {key: value for key, value in found.items() if key != "rope_parameters"}
    assert families()["gemma3_text"].read(old)[1]["rope_bases"] == [20.0, 500.0]


def test_the_simpler_of_two_classes_is_written_unless_the_model_came_from_the_other() -> None:
    """A Granite whose factors are all neutral is a Llama."""
    neutral = families()["granite"].read(raw("granite", embedding_multiplier=1.0, residual_multiplier=1.0,
                                             logits_scaling=1.0, attention_multiplier=4 ** -0.5))[0]
    assert fit(neutral, {}).family.name == "llama"
    assert fit(neutral, {}, first="granite").family.name == "granite"


def test_a_divisor_of_logits_survives_the_round_trip_to_the_digit() -> None:
    for value in (6.0, 8.0, 13.7, 49.0):
        config = families()["granite"].read(raw("granite", logits_scaling=value))[0]
        assert families()["granite"].write(config, {})[0]["logits_scaling"] == value


def test_the_balancing_loss_is_shared_among_the_layers_with_experts() -> None:
    """Two choices and one layer with experts, of two."""
    config, facts = families()["qwen3_moe"].read(raw("qwen3_moe", router_aux_loss_coef=0.3))
    assert facts["balance_loss"] == 0.3 * 2 / 1
    assert families()["qwen3_moe"].write(config, {})[0]["router_aux_loss_coef"] == 0.3
