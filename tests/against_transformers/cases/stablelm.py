from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("StableLm", {
    "plain": {"num_key_value_heads": 2, "partial_rotary_factor": 0.5, "eos_token_id": None},
    "parallel": {"num_key_value_heads": 1, "use_parallel_residual": True, "use_qkv_bias": True, "hidden_size": 96,
                 "eos_token_id": None, "tie_word_embeddings": True, "layer_norm_eps": 1e-3},
})
