"""What llama.cpp cannot compute is refused with the list of it, before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from interop.gguf.gguf_models import (
    BLOOM,
    FALCON,
    GATED,
    GPT2,
    GROUPED,
    LLAMA3,
    LONGROPE,
    MPT,
    ODD_YARN,
    YARN,
    case,
    loaded,
)
from weft.core.errors import InputError, MissingExtra, OccupiedError, UnsupportedError
from weft.interop.convert import convert
from weft.interop.gguf.rotary_keys import COMPUTED, rotary_limits


@pytest.mark.parametrize(("family", "raw", "problem"), [
    ("mistral", {**GROUPED, "sliding_window": 8},
     "mask: a window of 8 tokens in a context of 64, but llama.cpp's llama has no windows."),
    ("qwen2", {**GROUPED, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
     "mask: a window of 8 tokens"),
    ("llama", {**GROUPED, "hidden_act": "gelu_new"}, "activation: 'gelu_tanh', but llama.cpp's llama has only silu."),
    ("llama", {**GATED, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
     "rope_scaling: 'dynamic', but llama.cpp's llama has only linear, llama3, longrope, none, ntk, yarn."),
    ("llama", {**GATED, "rope_scaling": {**LONGROPE, "original_max_position_embeddings": 8}},
     "it would never use the short factors"),
    ("qwen3", {**GROUPED, "head_dim": 16, "rope_scaling": LLAMA3},
     "rope_scaling: 'llama3', but llama.cpp's qwen3 has "),
    ("qwen3", {**GROUPED, "head_dim": 16, "rope_scaling": ODD_YARN},
     "'yarn' with beta_fast 3.0, beta_slow 0.5, truncate False, but llama.cpp's qwen3 has 32 and 1 turns, truncated."),
    ("qwen3", {**GROUPED, "head_dim": 16, "attention_bias": True},
     "attention_bias: 'all', but llama.cpp's qwen3 has only 'none'."),
    ("qwen2", {**GATED, "head_dim": 16, "rope_scaling": YARN},
     "d_head: 6 heads of 16 features make 96, but llama.cpp's qwen2 has heads that make d_model 24."),
    ("gemma", {**GATED, "num_key_value_heads": 1, "tie_word_embeddings": False}, "tied: false, but llama.cpp's gemma"),
    ("phi", {**GATED, "qk_layernorm": True}, "qk_norm: True, but llama.cpp's phi2 has only False."),
    ("falcon", {**FALCON, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
     "alibi: True, but llama.cpp's falcon has only False.\n  - wiring: 'sequential', but llama.cpp's falcon has only "
     "'one norm' or 'two norms'.\n  - bias: True"),
    ("bloom", {**BLOOM, "apply_residual_connection_post_layernorm": True}, "skip_normed: True"),
    ("mpt", {**MPT, "attn_config": {"softmax_scale": 0.5}}, "scale: 0.5, but llama.cpp's mpt has only None."),
    ("gpt2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scales: [None, 0.25], but llama.cpp's gpt2 has only"),
    ("gpt_neox", {**GATED, "attention_bias": False}, "attention_bias: 'none', but llama.cpp's gptneox has only 'all'."),
])
def test_what_llama_cpp_lacks_is_named(family: str, raw: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert(loaded(family, raw, tmp_path), tmp_path / "new" / "a.gguf", to="gguf", family=family)
    assert f"as a {family} model it does not fit in" in str(caught.value)
    assert problem in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_family_is_told_so(tmp_path: Path) -> None:
    opt = {"vocab_size": 13, "max_position_embeddings": 16, "hidden_size": 9, "num_hidden_layers": 2, "ffn_dim": 8,
           "num_attention_heads": 3, "word_embed_proj_dim": 5}
    with pytest.raises(UnsupportedError, match="it has no architecture for the family 'opt', and as a "):
        convert(loaded("opt", opt, tmp_path), tmp_path / "a.gguf", to="gguf")
    with pytest.raises(InputError, match=r"family: llama.cpp has no architecture for a family 'opt'. Did you mean 'mp"):
        convert(case("llama", tmp_path), tmp_path / "a.gguf", to="gguf", family="opt")


def test_a_model_takes_any_family_that_fits(tmp_path: Path) -> None:
    """Mistral's window is none, and as Llama's model it has the same file."""
    source = loaded("mistral", {**GROUPED, "sliding_window": None}, tmp_path)
    source.facts["family"] = "opt"
    assert convert(source, tmp_path / "a.gguf", to="gguf").family == "llama"


def test_an_odd_number_of_turned_features_is_refused() -> None:
    facts = {"rope_scaling": {"kind": "none"}, "rot": 3, "d_head": 8}
    assert list(rotary_limits("phi2", COMPUTED, facts)) == [
        "rot: 3 features are rotary, but llama.cpp rotates an even number."]


def test_float64_is_refused(tmp_path: Path) -> None:
    source = case("llama", tmp_path)
    source.model.to(torch.float64)
    with pytest.raises(UnsupportedError, match=r"dtype: llama.cpp has no matrices in float64. Convert with --cast"):
        convert(source, tmp_path / "a.gguf", to="gguf")


def test_what_stands_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no model")
    for name, told in (("folder", "there is a folder at this path, and a file is to be written"),
                       ("text", "there is a file at this path already, and nothing proves that Weft wrote it")):
        with pytest.raises(OccupiedError, match=told):
            convert(case("llama", tmp_path), tmp_path / name, to="gguf")
    assert (tmp_path / "text").read_text() == "no model"


def test_a_size_of_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_shard_size: the format 'gguf' is always a single file"):
        convert(case("llama", tmp_path), tmp_path / "a.gguf", to="gguf", max_shard_size="2GB")


def test_without_the_package_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"a GGUF file needs the package 'gguf'.*pip install 'weft\[gguf\]'"):
        convert(case("llama", tmp_path), tmp_path / "a.gguf", to="gguf")
