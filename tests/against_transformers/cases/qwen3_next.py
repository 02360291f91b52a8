from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
         "shared_expert_intermediate_size": 28, "linear_key_head_dim": 6, "linear_value_head_dim": 5}
CASES = relatives("Qwen3Next", {
    # What a memory returns for its first tokens is near 0: with an epsilon of 1e-6 its norm magnifies their rounding.
    "plain": {**SMALL, "rms_norm_eps": 1e-3, "num_hidden_layers": 4, "num_key_value_heads": 2,
              "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "some_dense": {**SMALL, "num_key_value_heads": 3, "mlp_only_layers": [1], "norm_topk_prob": False,
                   "layer_types": ["full_attention", "linear_attention", "linear_attention"],
                   "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3,
                   "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
                                                                    "partial_rotary_factor": 0.5}},
})
GRADIENTS = CASES[0]
