"""What the keys of GPT, GPT-Neo, GPT-J, OPT, BLOOM, MPT and Phi cannot say or be read as, one message each."""

from __future__ import annotations

import re
from typing import Any

import pytest

from weft.core.errors import ConfigError
from weft.core.model import ModelConfig
from weft.families.family import families
from weft.families.keys import Fixed, Ignored, Nested, Read, read_keys
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
    ("gpt_neo", {"attention_layers": ["global", "near"]}, "attention_layers: near, but only global and local are"),
    ("gpt_neo", {"attention_types": [[["local"], 3]]}, "attention_types: 3 types for 2 layers."),
    ("gpt_neo", {"window_size": 0}, "window_size: 0, but some layers are local, whose windows have 1 token or more."),
    ("bloom", {"n_embed": 0}, "hidden_size: 0 is no width."),
    ("bloom", {"n_inner": 5}, "n_inner: 5, but only None can be read."),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 4}, "slow_but_exact: with pretraining_tp 4, transformers "
                                                             "computes without the biases of the output maps."),
    ("phi", {"partial_rotary_factor": 0.4}, "partial_rotary_factor: 0.4 turns 25 of 64 features, which must be an"),
    ("opt", {"scale_embeddings": True}, "scale_embeddings: True, but only False or None can be read."),
    ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi: False, but only True or None can be read. The class "
                                               "of transformers has ALiBi whatever this says."),
    ("mpt", {"attn_config": {"alibis": False}}, "attn_config.alibis: unknown key. Did you mean 'alibi'?"),
    ("mpt", {"attn_config": 3}, "attn_config: 3 is not a mapping."),
    ("mpt", {"logit_scale": 2.0}, "logit_scale: 2.0, but only None can be read."),
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


def test_a_slope_that_is_not_used_is_told() -> None:
    family = families()["mpt"]
    (note,) = family.notes({"attn_config": {"alibi_bias_max": 16}})
    assert note.startswith("attn_config.alibi_bias_max: not used: the class of transformers computes slopes with 8")
    assert family.notes({"attn_config": {"alibi_bias_max": 8}}) == []


def test_a_configuration_in_a_configuration_has_rules_of_its_own() -> None:
    rules = (Nested("inner", (Read("a", "one"), Fixed("b", (1,)), Ignored(("c",), "nothing", told=True))),)
    assert read_keys(rules, {"inner": {"a": 2, "b": 1, "c": 5}}) == ({"one": 2}, [])
    assert read_keys(rules, {}) == ({}, ["inner.a: missing. inner.b: None, but only 1 can be read."])
    assert rules[0].write({"one": 3}) == {"inner": {"a": 3, "b": 1}}
    assert rules[0].notes({"inner": {"c": 5}}) == ["inner.c: nothing"]
