from __future__ import annotations

from against_transformers.tiny import relatives

STATE_SPACE = {"mamba_n_heads": 6, "mamba_d_state": 5, "mamba_chunk_size": 8, "eos_token_id": None,
               "pad_token_id": None}
CASES = relatives("Bamba", {
    # With the usual epsilon norms of the first tokens magnify what is rounded: gradients of 40 differ by 0.002.
    "plain": {**STATE_SPACE, "attn_layer_indices": [1], "num_key_value_heads": 2, "mamba_n_groups": 2,
              "rms_norm_eps": 0.02},
    "biased": {**STATE_SPACE, "attn_layer_indices": [0, 2], "num_key_value_heads": 6, "attention_bias": True,
               "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3,
               "mamba_expand": 1, "mamba_d_head": 8, "tie_word_embeddings": True, "time_step_limit": [0.3, 0.8]},
})
GRADIENTS = CASES[0]
