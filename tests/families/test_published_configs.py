"""Published models are built with their published numbers of parameters, their config.json files are read whole, and
unknown keys refuse a folder only where they may change a result."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from interop.huggingface.tiny_folders import stored, write
from weft import api
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import ModelConfig
from weft.core.part_config import PartConfig, expand, kinds_of
from weft.families.family import families, family_of
from weft.interop.formats import entry
from weft.interop.pooling import count_parameters
from weft.preset_files.models import published

WHOLE = {name: size for name, size in published().items() if size.keys != "shape"}
"""Models of which all keys of the published file are known."""
SMOL, NEOX = "smollm2-135m", "gpt-neox-20b"


def count_by_blocks(config: ModelConfig) -> int:
    """`count_parameters` of a model whose equal blocks have equally many, as those of every family: each kind of block
    is built once beside the first, which takes a fraction of the time."""
    if not config.stack():
        return count_parameters(config)

    def count(*blocks: PartConfig) -> int:
        return count_parameters(config.with_(blocks=list(blocks)))

    first, *others = (block for _, block in expand(config.stack()))
    alone = count(first)
    return alone + sum(number * (count(first, block) - alone) for block, number in kinds_of(others))


@pytest.mark.parametrize("name", published())
def test_a_published_model_has_its_published_number_of_parameters(name: str) -> None:
    size = published()[name]
    found = entry(families()[size.family], size)
    assert found.agrees
    assert found.parameters == count_by_blocks(families()[size.family].config(size))
    assert (size.counted is None) == (size.rounded is None), "a rounded number has the exact one beside it"


def test_the_models_that_are_listed_are_those_that_are_published() -> None:
    """Each once, by family."""
    assert [each.name for each in api.families()] == [
        size.name for family in families().values() for size in family.sizes]


@pytest.mark.parametrize("name", ["gpt2", "gemma-3-270m", "bert-base-uncased", "rwkv-4-169m", "mamba2-130m"])
def test_parameters_counted_by_kinds_of_blocks_are_those_of_the_whole_model(name: str) -> None:
    size = published()[name]
    config = families()[size.family].config(size)
    assert count_by_blocks(config) == count_parameters(config)


def test_a_hundred_published_files_are_read_whole() -> None:
    assert len(WHOLE) >= 100
    for name, size in WHOLE.items():
        family = family_of(size.values, name)
        assert family.name == size.family
        family.read(size.values, strict=True)
        assert [note for note in family.notes(size.values) if "unknown key" in note] == []


def test_most_published_files_were_compared_with_a_copy() -> None:
    compared = {name: size.found for name, size in WHOLE.items() if size.found is not None}
    assert len(compared) >= 131
    to_the_letter = {name for name, found in compared.items() if not found.differs and not found.lacks}
    assert len(to_the_letter) >= 103
    assert all(published()[name].keys == "copy" for name in to_the_letter)


@pytest.mark.parametrize("name", [name for name, size in WHOLE.items() if size.found is not None])
def test_a_copy_of_a_published_file_is_the_same_model(name: str) -> None:
    """Copies were saved again by other versions, or have keys of those who keep them: none changes the model."""
    size = published()[name]
    assert size.found is not None and size.found.repository.count("/") == 1 and size.found.path
    copy = size.found.content(size.values)
    assert all(size.values.get(key, ...) != value for key, value in size.found.differs.items())
    assert set(size.found.lacks) <= set(size.values)
    family = family_of(copy, name)
    assert family.name == size.family
    assert family.read(copy)[0] == family.read(size.values)[0]
    assert [note for note in family.notes(copy) if "unknown key" in note and "chunk_size" not in note
            and "window_size" not in note] == []


def test_a_published_model_says_where_its_numbers_are_from() -> None:
    for name, size in published().items():
        assert size.source and name == name.lower(), name
        assert size.parameters is not None, name
        assert size.keys == "shape" or "/" in size.hub, name


def read(name: str, **changed: Any) -> list[str]:
    """The notes of a published configuration with further keys."""
    raw = {**published()[name].values, **changed}
    family = family_of(raw, name)
    family.read(raw)
    return family.notes(raw)


def test_an_unknown_key_that_switches_something_on_is_a_note_and_a_problem_where_asked() -> None:
    assert read(SMOL, neftune_noise_alpha=5.0) == ["neftune_noise_alpha: unknown key. Its value, 5.0, is not used."]
    with pytest.raises(ConfigError, match=r"neftune_noise_alpha: unknown key\. Its value, 5\.0, is not used\."):
        raw = {**published()[SMOL].values, "neftune_noise_alpha": 5.0}
        family_of(raw, SMOL).read(raw, strict=True)


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_an_unknown_key_that_switches_off_what_is_off_says_nothing(value: Any) -> None:
    assert read(SMOL, use_mrope=value, num_experts=value) == []
    assert read(SMOL, made_up=value) == ([] if value is None else [
        f"made_up: unknown key. Its value, {value!r}, is not used."])


@pytest.mark.parametrize("name", sorted({size.family: name for name, size in WHOLE.items()}.values()))
def test_attention_of_the_other_direction_is_refused_in_every_family(name: str) -> None:
    """As in gte-Qwen2, whose logits would be others: `transformers` reads the key in the function that makes masks, so
    no configuration class lists it."""
    encoder = families()[WHOLE[name].family].template["kind"] in ("encoder", "image_encoder")
    assert read(name, is_causal=not encoder) == read(name)
    with pytest.raises(ConfigError, match=f"is_causal: {encoder}, but only {not encoder} or None can be read"):
        read(name, is_causal=encoder)


@pytest.mark.parametrize(("name", "key"), [(SMOL, "scale_attn_weights"), ("mixtral-8x7b", "norm_topk_prob"),
                                           (SMOL, "rope_interleave"), (SMOL, "use_conv_bias")])
def test_what_is_on_in_other_models_is_not_switched_off_in_silence(name: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key. False changes what is computed in other models"):
        read(name, **{key: False})


@pytest.mark.parametrize(("name", "key", "value"), [
    (SMOL, "attn_logit_softcapping", 50.0), (SMOL, "sliding_window", 4096), (SMOL, "num_local_experts", 8),
    (SMOL, "use_mrope", True), (SMOL, "residual_multiplier", 0.22), (SMOL, "qk_layernorm", True),
    ("phi-4", "attention_bias", True), ("phi-4", "lm_head_bias", True),
    (NEOX, "attention_probs_dropout_prob", 0.1), ("qwen2.5-0.5b", "use_mrope", True),
    ("gpt2", "alibi", True), (SMOL, "clip_qkv", 8.0)])
def test_a_key_that_changes_what_other_models_compute_is_refused_by_name(name: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key. {value!r} changes what is computed in other models, "
                                          "and this family has no such part here."):
        read(name, **{key: value})


@pytest.mark.parametrize(("key", "value", "meant"), [
    ("tie_word_embedding", False, "tie_word_embeddings"), ("hidden_sizes", 576, "hidden_size"),
    ("num_key_values_heads", 1, "num_key_value_heads"), ("ropetheta", 5e5, "rope_theta")])
def test_a_misspelling_of_a_key_that_is_read_is_refused_whatever_its_value(key: str, value: Any, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key. Did you mean '{meant}'?"):
        read(SMOL, **{key: value})


def test_a_switch_of_norms_that_the_class_always_has_may_only_be_on() -> None:
    """As Qwen3-Coder's files and models made from it say."""
    assert read("qwen3-30b-a3b", use_qk_norm=True) == read("qwen3-30b-a3b")
    with pytest.raises(ConfigError, match=r"use_qk_norm: False, but only None or True can be read\. The class of"):
        read("qwen3-30b-a3b", use_qk_norm=False)


def test_values_of_phi_4_mini_that_no_class_reads_are_held_to_the_published_ones() -> None:
    with pytest.raises(ConfigError, match="full_attn_mod: 2, but only 1 or None can be read"):
        read("phi-4-mini", full_attn_mod=2)


def test_a_folder_with_an_unknown_key_is_loaded_with_a_note_and_refused_where_asked(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "llama")
    raw = stored()["llama"]["config"]
    (tmp_path / "config.json").write_text(json.dumps({**raw, "made_up_key": "on"}))
    with caplog.at_level(logging.WARNING):
        loaded = api.load(tmp_path)
    assert "made_up_key: unknown key. Its value, 'on', is not used." in caplog.text
    assert bool(torch.isfinite(loaded.model.state_dict()["embedding.tokens.weight"]).all())
    with pytest.raises(CheckpointError, match="made_up_key: unknown key"):
        api.load(tmp_path, strict=True)
    with pytest.raises(CheckpointError, match="made_up_key: unknown key"):
        api.convert(tmp_path, tmp_path / "out", to="weft", strict=True)
