from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Mixtral", {
    "plain": {"num_key_value_heads": 2, "num_local_experts": 4},
    "window": {"num_key_value_heads": 3, "sliding_window": 5, "num_local_experts": 3, "num_experts_per_tok": 1,
               "head_dim": 10, "router_aux_loss_coef": 0.02},
    "all_experts": {"num_key_value_heads": 6, "num_local_experts": 3, "num_experts_per_tok": 3,
                    "tie_word_embeddings": True, "hidden_act": "gelu", "output_router_logits": True},
    "one_kv_head": {"num_key_value_heads": 1, "num_local_experts": 5, "num_experts_per_tok": 2, "hidden_size": 44,
                    "head_dim": 14, "num_attention_heads": 3},
})
GRADIENTS = CASES[0]
