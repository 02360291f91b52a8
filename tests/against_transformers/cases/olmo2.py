from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Olmo2", {
    "plain": {"num_key_value_heads": 2, "pad_token_id": None},
    "biased": {"num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
               "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}},
})
GRADIENTS = CASES[0]
