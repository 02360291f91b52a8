from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Cohere", {
    "plain": {"num_key_value_heads": 2},
    "biased": {"num_key_value_heads": 6, "attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.7,
               "layer_norm_eps": 1e-3, "rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
})
