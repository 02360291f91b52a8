"""What the keys of Mamba-2, Bamba and Falcon-H1 cannot say or be read as."""

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

NAMES = ("bamba", "falcon_h1", "mamba2")


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


def test_bounds_of_steps_are_read_and_written() -> None:
    assert families()["mamba2"].read(raw("mamba2", time_step_limit=None))[1]["most"] is None
    for limit in ([0.0, 0.5], [0.1, float("inf")]):
        config, facts = families()["mamba2"].read(raw("mamba2", time_step_limit=limit))
        assert (facts["least"], facts["most"]) == (limit[0], None if limit[1] == float("inf") else 0.5)
        assert families()["mamba2"].write(config, {})[0]["time_step_limit"] == [
            limit[0], {"__float__": "Infinity"} if facts["most"] is None else 0.5]


def test_a_factor_on_what_attention_reads_is_squared_in_scores() -> None:
    facts = families()["falcon_h1"].read(raw("falcon_h1", attention_in_multiplier=3.0, key_multiplier=0.5))[1]
    assert facts["scale"] == 0.5 * 9.0 * facts["d_head"] ** -0.5
    assert facts["attention_out"] == pytest.approx(0.9 * 3.0)


def test_sizes_that_follow_from_others() -> None:
    read = families()["falcon_h1"].read
    assert read(raw("falcon_h1", mamba_d_ssm=None, mamba_d_head="auto"))[1]["ssm_head"] == 2 * 12 // 4
    assert families()["bamba"].read(raw("bamba", mamba_d_head="auto"))[1]["ssm_head"] == 2 * 12 // 4


@pytest.mark.parametrize(("name", "values", "message"), [
    ("mamba2", {"expand": 3}, "expand: 3 times hidden_size 12 is not 4 heads of 6 features."),
    ("mamba2", {"time_step_limit": [1.0]}, "time_step_limit: [1.0], where only two numbers can be read."),
    ("mamba2", {"hidden_act": "gelu"}, "hidden_act: 'gelu', but only 'silu' or 'swish' can be read. The convolution"),
    ("mamba2", {"rms_norm": False}, "rms_norm: False, but only True or None can be read. Its class has a norm"),
    ("mamba2", {"n_groups": 3}, "4 heads do not divide into 3 groups"),
    ("bamba", {"attn_layer_indices": [2]}, "attn_layer_indices: [2], which are not indices of 2 layers."),
    ("bamba", {"layers_block_type": ["mamba"]}, "layers_block_type: ['mamba'], but only None can be read."),
    ("falcon_h1", {"mamba_d_head": 5}, "mamba_d_ssm: 12, which is not 4 heads of 5 features."),
    ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers: [1.0], where only 5 numbers can be read."),
    ("falcon_h1", {"projectors_bias": True}, "mamba_proj_bias: False and projectors_bias: True, but the projections"),
    ("falcon_h1", {"attention_bias": True, "attention_in_multiplier": 2.0},
     "attention_in_multiplier: 2.0, which Weft has only for attention without biases."),
    ("falcon_h1", {"mamba_use_mlp": False}, "mamba_use_mlp: False, but only True or None can be read."),
])
def test_what_cannot_be_read_is_said(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        families()[name].read(raw(name, **values))[0].build()


@pytest.mark.parametrize(("name", "values", "message"), [
    ("mamba2", {"ssm_head": 5}, "expand: 4 heads of 5 features are no whole multiple of hidden_size 12, which the"),
    ("bamba", {"attends": [False, False]}, "attn_layer_indices: all layers have a state space, so the sizes of the"),
    ("bamba", {"attends": [True, True]}, "attn_layer_indices: all layers have attention, so the sizes of the others"),
    ("bamba", {"rot": None}, "partial_rotary_factor: BambaConfig turns half of a head's features"),
])
def test_what_cannot_be_written_is_said(name: str, values: dict[str, Any], message: str) -> None:
    _, _, problems = families()[name].write(changed(name, **values), {})
    assert any(message in each for each in problems), problems
