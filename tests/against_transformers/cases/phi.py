from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Phi", {
    "plain": {},
    "grouped": {"num_key_value_heads": 2, "partial_rotary_factor": 0.25, "hidden_act": "relu",
                "tie_word_embeddings": True},
    "normed": {"qk_layernorm": True, "hidden_size": 70, "num_attention_heads": 7, "num_key_value_heads": 1,
               "partial_rotary_factor": 0.4, "layer_norm_eps": 1e-3},
    "odd_heads": {"hidden_size": 42, "partial_rotary_factor": 0.6},
    "head_dim": {"head_dim": 10, "partial_rotary_factor": 1.0},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "partial_rotary_factor": 0.5,
                                 "original_max_position_embeddings": 16}},
})
GRADIENTS = CASES[2]
