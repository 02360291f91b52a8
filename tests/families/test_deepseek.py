"""What DeepSeek's keys can say, and cannot: experts and their groups, scales with YaRN, 8-bit weights."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from interop.huggingface.tiny_folders import stored, write
from weft import api
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import ModelConfig
from weft.families.family import families
from weft.families.template import build_config
from weft.interop.huggingface.writing import fit

NAMES = ("deepseek_v2", "deepseek_v3")


def raw(name: str, **values: Any) -> dict[str, Any]:
    return {**stored()[name]["config"], **values}


def changed(name: str, **values: Any) -> ModelConfig:
    return build_config(families()[name].template, {**families()[name].read(raw(name))[1], **values})


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_written_as_it_is_read_and_for_its_own_class(name: str) -> None:
    for values in ({}, {"first_k_dense_replace": 0}, {"q_lora_rank": 5}, {"n_group": 1, "topk_group": 1},
                   {"rope_parameters": None}):
        config = families()[name].read(raw(name, **values))[0]
        written = fit(config, {}, first=name)
        assert written.family.name == name
        assert families()[name].read(written.raw)[0] == config


@pytest.mark.parametrize(("name", "values", "message"), [
    ("deepseek_v2", {"num_key_value_heads": 1}, "num_key_value_heads: 1, but all 3 heads read the one latent"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method: 'noaux_tc', but only 'greedy' or 'group_limited_"),
    ("deepseek_v2", {"n_group": None}, "topk_method: 'group_limited_greedy' needs n_group and topk_group."),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob: True, but only False or None can be read. With it the "
                                              "released code"),
    ("deepseek_v2", {"n_shared_experts": 0}, "n_shared_experts: 0, but the class has at least one."),
    ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq: 2, but only 1 or None can be read."),
    ("deepseek_v2", {"num_experts_per_tok": None}, "num_experts_per_tok: missing."),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func: 'softmax', but only 'sigmoid' or None can be read."),
    ("deepseek_v3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale_all_dim": 1.0}},
     "rope_parameters: mscale_all_dim without mscale, or beside attention_factor"),
    ("deepseek_v3", {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
     "quantization_config: its matrices are 8-bit floats with a scale for each block. Multiply them out first: load "
     "the folder in transformers with dtype=bfloat16 and FineGrainedFP8Config(dequantize=True)"),
    ("deepseek_v3", {"quantization_config": {"quant_method": "awq"}}, "quantization_config: {'quant_method': 'awq'}, "
                                                                      "but only None can be read. Its weights are")])
def test_what_cannot_be_read_is_said(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        families()[name].read(raw(name, **values))


@pytest.mark.parametrize(("name", "values", "message"), [
    ("deepseek_v2", {"scale": 0.3}, "rope_parameters: scores are multiplied by 0.3, and the keys imply"),
    ("deepseek_v2", {"sparse": [False, False]}, "first_k_dense_replace: no layer has experts, so their number and"),
    ("deepseek_v3", {"sparse": [True, False]}, "first_k_dense_replace: a layer without experts comes after one with"),
    ("deepseek_v3", {"d_shared": 5}, "n_shared_experts: the shared expert is 5 wide, no multiple of the others' 4.")])
def test_what_cannot_be_written_is_said(name: str, values: dict[str, Any], message: str) -> None:
    problems = families()[name].write(changed(name, **values), {})[2]
    assert any(problem.startswith(message) for problem in problems), problems


def test_half_split_pairs_are_written_for_the_class_that_has_them() -> None:
    config = changed("deepseek_v3", layout="half_split")
    assert fit(config, {}, first="deepseek_v3").raw["rope_interleave"] is False
    named = families()["deepseek_v2"].write(config, {})[2]
    assert any("'half_split' where the family has 'interleaved'" in problem for problem in named), named


def test_yarn_scales_scores_by_the_square_of_its_temperature() -> None:
    """Factor 4 and mscale_all_dim 1, of 2 + 4 features."""
    found = families()["deepseek_v2"].read(raw("deepseek_v2"))[1]["scale"]
    assert found == pytest.approx(6 ** -0.5 * (0.1 * math.log(4) + 1) ** 2, rel=1e-12)
    assert families()["deepseek_v2"].read(raw("deepseek_v2", rope_parameters=None))[1]["scale"] is None


@pytest.mark.parametrize(("first", "groups"), [(0, [False, False]), (1, [True, False]), (2, [True, True])])
def test_the_first_layers_are_dense(first: int, groups: list[bool]) -> None:
    config = families()["deepseek_v3"].read(raw("deepseek_v3", first_k_dense_replace=first))[0]
    model = config.build()
    assert [dense_at(model, layer) for layer in range(2)] == groups


def dense_at(model: Any, layer: int) -> bool:
    """Whether a layer's feed-forward is dense."""
    return f"stack.layers.{layer}.layers.1.router.weight" not in model.state_dict()


def test_the_layer_that_predicts_further_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "theirs"
    tensors = write(folder, "deepseek_v3")
    extra = {"model.layers.61.eh_proj.weight": torch.zeros(3, 3), "model.layers.61.enorm.weight": torch.zeros(3)}
    save_file({**tensors, **extra}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw("deepseek_v3", num_nextn_predict_layers=1)))
    api.load(folder)
    assert "num_nextn_predict_layers: layers that predict further tokens" in caplog.text
    api.convert(folder, tmp_path / "back", to="hf")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["num_nextn_predict_layers"] == 0


def test_a_correction_that_is_missing_is_named(tmp_path: Path) -> None:
    tensors = write(tmp_path, "deepseek_v3")
    del tensors["model.layers.1.mlp.gate.e_score_correction_bias"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"gate.e_score_correction_bias: missing, shape \[4\]"):
        api.load(tmp_path)
