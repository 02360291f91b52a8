from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"kv_lora_rank": 20, "q_lora_rank": 14, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 7,
         "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 2,
         "num_key_value_heads": None}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 32, "beta_slow": 1}
CASES = relatives("DeepseekV2", {
    "plain": SMALL,
    "lite": {**SMALL, "q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 1,
             "tie_word_embeddings": True, "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    "groups": {**SMALL, "first_k_dense_replace": 2, "topk_method": "group_limited_greedy", "n_group": 3,
               "topk_group": 2, "routed_scaling_factor": 2.5, "attention_bias": True, "num_experts_per_tok": 3,
               "rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}},
    "wide_head": {**SMALL, "v_head_dim": 22, "qk_rope_head_dim": 8, "kv_lora_rank": 4, "rope_parameters": YARN},
})
GRADIENTS = CASES[2]
