"""Tiny random models of every family that llama.cpp knows, in the shapes that could go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from weft.checkpoints.load import Loaded
from weft.core.model import LanguageModel
from weft.families.family import families
from weft.tokenizers import Tokenizer

VOCAB = 61
SIZES = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
         "max_position_embeddings": 64}
GATED = {**SIZES, "intermediate_size": 20}
GROUPED = {**GATED, "num_key_value_heads": 2}
GPT2 = {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 64}
BLOOM = {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 2, "n_head": 6}
MPT = {"vocab_size": VOCAB, "d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
FALCON = {**SIZES, "ffn_hidden_size": 20}
NEW_FALCON = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
ODD_YARN = {**YARN, "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0],
            "original_max_position_embeddings": 256}
PHI3 = {**GATED, "pad_token_id": 0}

CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {**GPT2, "tie_word_embeddings": False}),
    "gpt2-odd": ("gpt2", {**GPT2, "n_embd": 15, "n_head": 3, "n_inner": 7, "activation_function": "gelu"}),
    "gpt_neox": ("gpt_neox", GATED),
    "gpt_neox-sequential": ("gpt_neox", {**GATED, "use_parallel_residual": False, "rotary_pct": 0.5, "hidden_size": 48,
                                         "tie_word_embeddings": True}),
    "gpt_neox-yarn": ("gpt_neox", {**GATED, "hidden_size": 96, "rotary_pct": 0.5, "rope_scaling": YARN}),
    "bloom": ("bloom", BLOOM),
    "bloom-five-heads": ("bloom", {**BLOOM, "hidden_size": 25, "n_head": 5, "tie_word_embeddings": False}),
    "mpt": ("mpt", MPT), "mpt-clipped": ("mpt", {**MPT, "n_heads": 6, "attn_config": {"clip_qkv": 0.6}}),
    "falcon": ("falcon", FALCON), "falcon-all-heads": ("falcon", {**FALCON, "multi_query": False}),
    "falcon-two-norms": ("falcon", {**NEW_FALCON, "tie_word_embeddings": False}),
    "falcon-one-norm": ("falcon", {**NEW_FALCON, "num_ln_in_parallel_attn": 1}),
    "falcon-linear": ("falcon", {**FALCON, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    "phi": ("phi", GROUPED), "phi-tied": ("phi", {**GATED, "tie_word_embeddings": True}),
    "phi3": ("phi3", {**PHI3, "num_key_value_heads": 2}),
    "phi3-partial": ("phi3", {**PHI3, "hidden_size": 48, "partial_rotary_factor": 0.5}),
    "phi3-longrope": ("phi3", {**PHI3, "max_position_embeddings": 512, "original_max_position_embeddings": 256,
                               "rope_scaling": {**LONGROPE, "type": "longrope"}}),
    "llama": ("llama", GROUPED),
    "llama-biased": ("llama", {**GATED, "num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True}),
    "llama-free-heads": ("llama", {**GATED, "head_dim": 10, "tie_word_embeddings": True}),
    "llama-linear": ("llama", {**GATED, "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 100.0}),
    "llama-yarn": ("llama", {**GATED, "head_dim": 16, "rope_scaling": YARN}),
    "llama-yarn-factor": ("llama", {**GATED, "head_dim": 16, "rope_scaling": {**YARN, "attention_factor": 1.3}}),
    "llama-yarn-odd": ("llama", {**GATED, "head_dim": 16, "rope_scaling": ODD_YARN, "rope_theta": 50.0}),
    "llama-llama3": ("llama", {**GATED, "head_dim": 8, "rope_scaling": LLAMA3, "rope_theta": 20.0}),
    "llama-longrope": ("llama", {**GATED, "rope_scaling": LONGROPE, "max_position_embeddings": 512}),
    "mistral": ("mistral", {**GROUPED, "sliding_window": 64}),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 3}),
    "gemma": ("gemma", {**GATED, "num_key_value_heads": 1, "head_dim": 10}),
    "qwen2": ("qwen2", GROUPED),
    "qwen2-yarn": ("qwen2", {**GROUPED, "hidden_size": 96, "tie_word_embeddings": True, "rope_scaling": YARN}),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 10}),
}


def build(family: str, raw: Mapping[str, Any]) -> LanguageModel:
    """A model whose weights are large enough that every part of it shows in the logits."""
    model = families()[family].read(raw)[0].build()
    assert isinstance(model, LanguageModel)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(parameter + noise if "norm" in name else noise)
    return model.eval()


def loaded(family: str, raw: Mapping[str, Any], place: Any, tokenizer: Tokenizer | None = None) -> Loaded:
    """The model as if it had been read from ``place``."""
    model = build(family, raw)
    return Loaded(model, tokenizer, model.config, None, {"family": family, "kept": {}}, place)


def case(name: str, place: Any, tokenizer: Tokenizer | None = None) -> Loaded:
    """A model of `CASES`."""
    return loaded(*CASES[name], place, tokenizer)
