"""What the keys of GPT, GPT-Neo, GPT-J, OPT, BLOOM, MPT and Phi cannot say or be read as, one message each."""

from __future__ import annotations

import re
from typing import Any

import pytest

from weft.core.errors import ConfigError
from weft.core.model import ModelConfig
from weft.families.configurations import nested, read_keys
from weft.families.family import families
from weft.families.keys import Fixed, Ignored, Read
from weft.families.template import build_config

NEO = {"hidden_size": 8, "num_heads": 2, "num_layers": 2}
TINY: dict[str, dict[str, Any]] = {
    "gpt_neo": {**NEO, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"n_embd": 12, "n_head": 2, "n_layer": 2, "rotary_dim": 4}, "phi": {"num_hidden_layers": 2},
    "opt": {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2},
    "bloom": {"hidden_size": 8, "n_head": 2}, "mpt": {"d_model": 8, "n_heads": 2, "n_layers": 2},
    "openai-gpt": {"n_embd": 8, "n_head": 2, "n_layer": 2}}
"""Configurations that can be read."""


def facts(name: str) -> dict[str, Any]:
    return families()[name].read(TINY[name])[1]


def changed(name: str, **values: Any) -> ModelConfig:
    return build_config(families()[name].template, {**facts(name), **values})


@pytest.mark.parametrize("name", TINY)
def test_the_configurations_are_written_as_they_are_read(name: str) -> None:
    family = families()[name]
    config, read = family.read(TINY[name])
    raw, _, problems = family.write(config, {})
    assert problems == []
    again, reread = family.read(raw)
    assert again == config
    assert reread | {"kept": None} == read | {"kept": None}


@pytest.mark.parametrize(("name", "values", "message"), [
    ("gptj", {"rotary_dim": 3}, "rotary_dim: 3, which must be an even number from 2 to the size of a head, 6."),
    ("gptj", {"rotary_dim": 8}, "rotary_dim: 8, which must be"),
    ("gptj", {"rotary_dim": None}, "rotary_dim: None, which must be"),
    ("gptj", {"rotary": False}, "rotary: False, but only True or None can be read. Its only positions are rotary."),
    ("gptj", {"n_embd": 13}, "n_head: 2 heads do not divide n_embd 13."),
    ("gpt_neo", {"attention_types": [["global", 2]]}, "attention_types: ['global', 2] is not a list of types and how "
                                                      "often it repeats."),
    ("gpt_neo", {"attention_layers": ["global", "near"]}, "attention_layers: near, but only global and local can "
                                                          "be read."),
    ("gpt_neo", {"attention_types": [[["local"], 3]]}, "attention_types: 3 types for 2 layers."),
    ("gpt_neo", {"window_size": 0}, "window_size: 0, but some layers are local, whose windows have 1 token or more."),
    ("bloom", {"n_embed": 0}, "hidden_size: 0 is not a width."),
    ("bloom", {"n_inner": 5}, "n_inner: 5, but only None can be read."),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 4}, "slow_but_exact: with pretraining_tp 4, transformers "
                                                             "computes without the biases of the output maps."),
    ("phi", {"partial_rotary_factor": 0.4}, "partial_rotary_factor: 0.4 gives 25 rotary of 64 features, and their"),
    ("opt", {"scale_embeddings": True}, "scale_embeddings: True, but only False or None can be read."),
    ("mpt", {"attn_config": {"alibis": False}}, "attn_config.alibis: unknown key. Did you mean 'alibi'?"),
    ("mpt", {"attn_config": 3}, "attn_config: 3 is not a mapping."),
    ("openai-gpt", {"afn": "gelu_new"}, "afn: 'gelu_new' is not known here."),
    ("openai-gpt", {"n_special": 2}, "n_special: 2, but only 0 or None can be read.")])
def test_what_cannot_be_read_is_said(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        families()[name].read({**TINY[name], **values})


@pytest.mark.parametrize(("name", "values", "message"), [
    ("gptj", {"d_head": 4}, "heads have 4 features; the file has no key for other sizes than n_embd / n_head."),
    ("gpt_neo", {"masks": ["causal & window(3)", "causal & window(4)"]},
     "window_size: layers have windows of 3, 4 tokens; the file has one size."),
    ("opt", {"norm_first": False, "final_norm": True}, "do_layer_norm_before: a model whose norms follow its layers "
                                                       "has no norm after the last block."),
    ("opt", {"d_embedding": 8}, "word_embed_proj_dim: maps embeddings of 8 features to as many;"),
    ("opt", {"mlp_bias": False}, "enable_bias: attention has biases on 'all' and the feed-forward none;"),
    ("bloom", {"d_ff": 9}, "hidden_size: the feed-forward has 9 features, but the class gives it four times the width"),
    ("mpt", {"d_ff": 9}, "expansion_ratio: the feed-forward has 9 features, but the class gives it four times d_model"),
    ("phi", {"d_head": 32, "qk_norm": True}, "head_dim: 32, but the class gives norms of queries and keys 64 features"),
    ("openai-gpt", {"d_ff": 9}, "the feed-forward has 9 features, but the class gives it four times n_embd 8.")])
def test_what_cannot_be_written_is_said(name: str, values: dict[str, Any], message: str) -> None:
    _, _, problems = families()[name].write(changed(name, **values), {})
    assert any(problem.startswith(message) for problem in problems), problems


def test_the_older_width_of_bloom_goes_first() -> None:
    assert families()["bloom"].read({"n_embed": 16, "hidden_size": 8, "n_head": 2})[1]["d_model"] == 16


def test_a_list_of_layers_goes_before_the_runs() -> None:
    read = families()["gpt_neo"].read({**TINY["gpt_neo"], "attention_layers": ["local", "global"]})[1]
    assert read["masks"] == ["causal & window(4)", "causal"]


@pytest.mark.parametrize(("values", "note"), [
    ({"attn_config": {"alibi_bias_max": 16}}, "attn_config.alibi_bias_max: not used: the class of transformers "
                                              "computes slopes with 8"),
    ({"attn_config": {"alibi": False}}, "attn_config.alibi: not used: the class of transformers has ALiBi in any case"),
    ({"attn_config": {"prefix_lm": True}}, "attn_config.prefix_lm: not used: the class of transformers is causal"),
    ({"attn_config": {"attn_uses_sequence_id": True}}, "attn_config.attn_uses_sequence_id: not used: the class of "),
    ({"logit_scale": 0.5}, "logit_scale: not used: the class of transformers does not scale logits")])
def test_what_the_class_of_mpt_does_not_use_is_noted(values: dict[str, Any], note: str) -> None:
    family = families()["mpt"]
    (found,) = family.notes(values)
    assert found.startswith(note)
    assert family.read({**TINY["mpt"], **values}) == family.read(TINY["mpt"])


def test_usual_values_of_keys_that_are_not_used_are_not_noted() -> None:
    usual = {"alibi_bias_max": 8, "alibi": True, "prefix_lm": False, "attn_uses_sequence_id": False}
    assert families()["mpt"].notes({"attn_config": usual, "logit_scale": None}) == []
    assert families()["mixtral"].notes({"router_jitter_noise": 0.0}) == families()["mistral"].notes({}) == []


def test_kinds_of_layers_that_mistral_does_not_have_are_noted() -> None:
    (note,) = families()["mistral"].notes({"layer_types": ["full_attention"] * 32})
    assert note.startswith("layer_types: not used: in the class of transformers all layers are alike")


def test_a_configuration_in_a_configuration_has_rules_of_its_own() -> None:
    rules = (nested("inner", (Read("a", "one"), Fixed("b", (1,)), Ignored(("c",), "nothing", notify=True))),)
    assert read_keys(rules, {"inner": {"a": 2, "b": 1, "c": 5}}) == ({"one": 2}, [])
    assert read_keys(rules, {}) == ({}, ["inner.a: missing. inner.b: None, but only 1 can be read."])
    assert rules[0].write({"one": 3}) == {"inner": {"a": 3, "b": 1}}
    assert rules[0].notes({"inner": {"c": 5}}) == ["inner.c: nothing"]
