from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
CASES = relatives("Qwen3Moe", {
    "plain": {**SMALL, "num_key_value_heads": 2, "norm_topk_prob": True},
    "some_dense": {**SMALL, "num_key_value_heads": 1, "head_dim": 10, "mlp_only_layers": [1], "attention_bias": True,
                   "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 5},
    "every_second": {**SMALL, "num_key_value_heads": 3, "decoder_sparse_step": 2, "num_experts_per_tok": 3},
})
