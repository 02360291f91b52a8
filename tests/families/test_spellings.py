"""Buffers that files of any family may hold, and the spellings of keys that go first where a file has two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from interop.huggingface.tiny_folders import stored, write
from weft import api
from weft.core.errors import CheckpointError
from weft.families.family import families

NAN = torch.full((1, 1, 2, 2), float("nan"))
BUFFERS = ("rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "layers.1.self_attn.rotary_emb.cos_cached",
           "layers.0.attention.rotary_emb.sin_cached", "h.0.self_attention.maybe_rotary.inv_freq",
           "h.1.self_attention.rotary.inv_freq", "h.0.attn.bias", "h.0.attn.masked_bias", "layers.0.attention.bias",
           "h.1.attn.attention.masked_bias", "position_ids", "embeddings.position_ids")
ALIASES = {"n_positions": "max_position_embeddings", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
           "n_head": "num_attention_heads"}


@pytest.mark.parametrize("name", stored())
def test_buffers_of_any_version_are_left_out(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    wanted = api.load(tmp_path).model.state_dict()
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), **{buffer: NAN.clone() for buffer in BUFFERS}}, path)
    found = api.load(tmp_path).model.state_dict()
    assert all(torch.equal(found[each], wanted[each]) for each in wanted)


@pytest.mark.parametrize("buffer", ["rotary_emb.weight", "h.0.attn.biases", "h.0.attn.c_attn.masked_bias"])
def test_a_name_that_is_nearly_one_is_not(buffer: str, tmp_path: Path) -> None:
    write(tmp_path, "gpt2")
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), buffer: NAN.clone()}, path)
    with pytest.raises(CheckpointError, match=f"{buffer}: unexpected"):
        api.load(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "gptj", "openai-gpt"])
def test_both_spellings_of_sizes_are_one(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    wanted = api.load(tmp_path).config
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({ALIASES.get(key, key): value for key, value in raw.items()}))
    assert api.load(tmp_path).config == wanted


def test_the_standard_spelling_goes_first() -> None:
    """As in transformers, where a file has both."""
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 2, "hidden_size": 12}
    for name in ("gpt2", "openai-gpt"):
        assert families()[name].read(sizes)[1]["d_model"] == 12
    experts = {"num_experts": 3, "num_local_experts": 5, "num_hidden_layers": 1}
    assert families()["mixtral"].read(experts)[1]["n_experts"] == 3


def test_proportional_scaling_of_whole_heads_is_linear() -> None:
    family = families()["llama"]
    for given, factor in (({"factor": 2.0}, 2.0), ({}, 1.0)):
        found, _ = family.read({"rope_parameters": {"rope_type": "proportional", "rope_theta": 50.0, **given}})
        assert found == family.read({"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0,
                                                         "factor": factor}})[0]
        assert family.write(found, {})[0]["rope_parameters"]["rope_type"] == "linear"


@pytest.mark.parametrize("d_head", [1, 4])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("by_layer", [True, False])
def test_a_scale_that_happens_to_be_the_usual_one_is_written(d_head: int, scaled: bool, by_layer: bool) -> None:
    """1 / 2 in the second layer is 1/sqrt(4), which Weft's own form of a model does not tell apart."""
    family = families()["gpt2"]
    raw = {"n_embd": 2 * d_head, "n_head": 2, "n_layer": 3, "scale_attn_weights": scaled,
           "scale_attn_by_inverse_layer_idx": by_layer}
    config, _ = family.read(raw)
    again, _, problems = family.write(config, {})
    assert problems == []
    assert family.read(again)[0] == config


def test_a_layer_s_number_divides_its_scale() -> None:
    raw = {"n_embd": 8, "n_head": 2, "n_layer": 3, "scale_attn_by_inverse_layer_idx": True}
    assert families()["gpt2"].read(raw)[1]["scales"] == [None, 1 / 4, pytest.approx(1 / 6)]  # of 1/sqrt(4), the usual


@pytest.mark.parametrize(("name", "fact", "value"), [
    ("llama", "eps", 1e-6), ("mistral", "eps", 1e-6), ("mixtral", "eps", 1e-5), ("phi3", "eps", 1e-5),
    ("gemma", "eps", 1e-6), ("gpt2", "eps", 1e-5), ("gpt_neox", "rot", 96 // 4), ("mixtral", "rope_base", 1e6)])
def test_a_key_that_is_left_out_has_the_value_of_transformers(name: str, fact: str, value: float) -> None:
    """The defaults of its classes of configuration, for files that do not say."""
    assert families()[name].read({})[1][fact] == value


def test_null_says_nothing() -> None:
    assert families()["falcon"].read({"bias": None})[1]["bias"] is False
    assert families()["mixtral"].read({"router_aux_loss_coef": None})[1]["balance_loss"] == pytest.approx(
        families()["mixtral"].read({})[1]["balance_loss"])
