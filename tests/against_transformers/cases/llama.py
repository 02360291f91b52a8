from __future__ import annotations

from against_transformers.tiny import Case, relatives

CASES = relatives("Llama", {
    "plain": {},
    "grouped": {"num_key_value_heads": 2, "rms_norm_eps": 1e-5},
    "one_kv_head": {"num_key_value_heads": 1, "hidden_act": "gelu_pytorch_tanh"},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "free_heads": {"head_dim": 10, "tie_word_embeddings": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 100.0},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}},
    "yarn_mscale": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
                                     "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.7,
                                     "mscale_all_dim": 1.0}, "rope_theta": 50.0},
    "yarn_factor": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
                                     "attention_factor": 1.3}},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                "original_max_position_embeddings": 8}, "rope_theta": 20.0},
    "longrope": {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3],
                                  "long_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 8},
                 "max_position_embeddings": 32},
    "longrope_factor": {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3],
                                         "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 8.0,
                                         "original_max_position_embeddings": 8}},
})
GRADIENTS: Case = CASES[3]
