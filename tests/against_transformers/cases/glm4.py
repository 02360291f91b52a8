from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Glm4", {
    "plain": {"num_key_value_heads": 2, "head_dim": 12, "pad_token_id": None},
    "bare": {"num_key_value_heads": 1, "head_dim": 10, "attention_bias": False, "tie_word_embeddings": True,
             "partial_rotary_factor": 0.4, "pad_token_id": None, "rms_norm_eps": 1e-3},
})
