from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"num_key_value_heads": 2, "num_experts": 5, "attn_layer_period": 3, "attn_layer_offset": 1,
         "mamba_d_state": 5, "eos_token_id": None}
CASES = relatives("Jamba", {
    "plain": SMALL,
    "biased": {**SMALL, "mamba_proj_bias": True, "mamba_conv_bias": False, "tie_word_embeddings": True,
               "mamba_dt_rank": 7, "mamba_expand": 1, "mamba_d_conv": 2, "rms_norm_eps": 1e-3, "num_hidden_layers": 4,
               "attn_layer_period": 2, "expert_layer_period": 3, "expert_layer_offset": 0, "num_experts_per_tok": 3},
    "one_expert": {**SMALL, "num_experts": 1, "num_key_value_heads": 6, "attn_layer_offset": 0},
})
GRADIENTS = CASES[1]
