from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "n_positions": 48, "n_embd": 35, "n_layer": 3, "n_head": 5}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "by_layer": {"scale_attn_by_inverse_layer_idx": True},
    "unscaled": {"scale_attn_weights": False, "n_inner": 17},
    "both": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"},
    "untied": {"tie_word_embeddings": False, "n_head": 7, "layer_norm_epsilon": 1e-3},
    "upcast": {"reorder_and_upcast_attn": True, "n_head": 1, "activation_function": "gelu"}}
CASES = [Case(f"gpt2-{name}", "GPT2Config", "GPT2LMHeadModel", {**TINY, **values}) for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
