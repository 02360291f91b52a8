from __future__ import annotations

from dataclasses import replace

from against_transformers.tiny import relatives

SMALL = {"query_pre_attn_scalar": 20, "sliding_window": 5, "head_dim": 10, "num_hidden_layers": 3}
FULL, SLIDING = "full_attention", "sliding_attention"
CASES = [replace(case, config="Gemma3TextConfig") for case in relatives("Gemma3", {
    "plain": {**SMALL, "num_key_value_heads": 2, "sliding_window_pattern": 2},
    "capped": {**SMALL, "num_key_value_heads": 6, "attention_bias": True, "tie_word_embeddings": False,
               "final_logit_softcapping": 3.0, "layer_types": [FULL, SLIDING, FULL],
               "rope_parameters": {FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
                                   SLIDING: {"rope_type": "default", "rope_theta": 20.0}}},
    "all_windows": {**SMALL, "num_key_value_heads": 1, "query_pre_attn_scalar": 10, "hidden_activation": "silu",
                    "rope_local_base_freq": 30.0},
})]
GRADIENTS = CASES[0]
