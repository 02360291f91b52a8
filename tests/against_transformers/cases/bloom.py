from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "hidden_size": 35, "n_layer": 3, "n_head": 5}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "skip_normed": {"apply_residual_connection_post_layernorm": True, "n_head": 7},
    "untied": {"tie_word_embeddings": False, "n_head": 1, "layer_norm_epsilon": 1e-3},
    "many_heads": {"hidden_size": 36, "n_head": 12, "slow_but_exact": True},
    "old_names": {"n_embed": 24, "num_attention_heads": 8, "num_hidden_layers": 2, "pretraining_tp": 3,
                  "seq_length": 32}}
CASES = [Case(f"bloom-{name}", "BloomConfig", "BloomForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
