from __future__ import annotations

from against_transformers.cases.deepseek_v2 import SMALL, YARN
from against_transformers.tiny import relatives

V3 = {**SMALL, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
      "num_key_value_heads": 6, "eos_token_id": None, "first_k_dense_replace": 1, "n_shared_experts": 1}
CASES = relatives("DeepseekV3", {
    "plain": V3,
    "yarn": {**V3, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "attention_bias": True},
    "half_split": {**V3, "rope_interleave": False, "q_lora_rank": None, "norm_topk_prob": False, "n_group": 1,
                   "topk_group": 1, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}},
    "all_sparse": {**V3, "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.0,
                   "tie_word_embeddings": True},
})
GRADIENTS = CASES[1]
