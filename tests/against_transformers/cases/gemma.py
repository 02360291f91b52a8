from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Gemma", {
    "plain": {"num_key_value_heads": 1, "head_dim": 16},
    "free_heads": {"num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-3, "hidden_act": "gelu"},
    "biased": {"num_key_value_heads": 6, "head_dim": 14, "attention_bias": True, "tie_word_embeddings": False},
    "exact_gelu": {"num_key_value_heads": 3, "head_dim": 8, "hidden_act": "gelu_python", "hidden_size": 45,
                   "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}},
})
