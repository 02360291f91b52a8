from __future__ import annotations

from against_transformers.tiny import relatives

FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 16, "rope_theta": 500.0}
SMALL = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 8, "rope_parameters": YARN}
CASES = relatives("GptOss", {
    "plain": {**SMALL, "num_key_value_heads": 2, "sliding_window": 5},
    "one_limit": {**SMALL, "num_key_value_heads": 1, "sliding_window": 4, "swiglu_limit": 0.5, "swiglu_alpha": 1.0,
                  "attention_bias": False, "tie_word_embeddings": True, "layer_types": [FULL, SLIDING, SLIDING]},
    "all_experts": {**SMALL, "num_key_value_heads": 6, "num_local_experts": 3, "num_experts_per_tok": 3,
                    "head_dim": 10, "sliding_window": 3, "rope_parameters": {"rope_type": "default",
                                                                             "rope_theta": 1e4}},
})
GRADIENTS = CASES[0]
