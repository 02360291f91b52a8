from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("GPTNeoX", {
    "plain": {},
    "sequential": {"use_parallel_residual": False, "rotary_pct": 1.0},
    "unbiased": {"attention_bias": False, "rotary_pct": 0.5, "layer_norm_eps": 1e-3},
    "odd_rotation": {"hidden_size": 72, "tie_word_embeddings": True, "rotary_emb_base": 500},
    "linear": {"rotary_pct": 1.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "hidden_act": "gelu_new"},
})
GRADIENTS = CASES[0]
