from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
CASES = relatives("Qwen2Moe", {
    "plain": {**SMALL, "num_key_value_heads": 2, "shared_expert_intermediate_size": 28},
    "some_dense": {**SMALL, "num_key_value_heads": 3, "mlp_only_layers": [1], "qkv_bias": False,
                   "norm_topk_prob": True, "shared_expert_intermediate_size": 12, "tie_word_embeddings": True,
                   "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
})
GRADIENTS = CASES[0]
