from __future__ import annotations

from against_transformers.tiny import relatives

SPACE = {"mamba_n_heads": 6, "mamba_d_ssm": 36, "mamba_d_state": 5, "mamba_chunk_size": 8, "eos_token_id": None,
         "pad_token_id": None, "rms_norm_eps": 0.02}
CASES = relatives("FalconH1", {
    "plain": {**SPACE, "num_key_value_heads": 2, "mamba_n_groups": 2, "mamba_rms_norm": True, "head_dim": 16,
              "embedding_multiplier": 3.0, "lm_head_multiplier": 0.7, "mlp_multipliers": [0.8, 0.6],
              "key_multiplier": 0.4, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25,
              "ssm_multipliers": [0.4, 0.7, 1.3, 0.5, 0.9], "ssm_out_multiplier": 0.3},
    "gate_first": {**SPACE, "num_key_value_heads": 6, "mamba_n_groups": 3, "mamba_rms_norm": True,
                   "mamba_norm_before_gate": False, "mamba_conv_bias": False, "attention_bias": True,
                   "mlp_bias": True, "mamba_proj_bias": True, "projectors_bias": True, "tie_word_embeddings": True},
    "gate_alone": {**SPACE, "num_key_value_heads": 1, "time_step_limit": [0.3, 0.8], "mamba_d_conv": 2},
})
GRADIENTS = CASES[0]
