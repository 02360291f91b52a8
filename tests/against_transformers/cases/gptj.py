from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "n_positions": 48, "n_embd": 40, "n_layer": 3, "n_head": 5, "rotary_dim": 4}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "whole_heads": {"rotary_dim": 8, "n_inner": 17, "activation_function": "relu"},
    "tied": {"tie_word_embeddings": True, "n_embd": 42, "n_head": 7, "rotary_dim": 2, "layer_norm_epsilon": 1e-3},
    "one_head": {"n_embd": 22, "n_head": 1, "rotary_dim": 22, "activation_function": "gelu"}}
CASES = [Case(f"gptj-{name}", "GPTJConfig", "GPTJForCausalLM", {**TINY, **values}) for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
