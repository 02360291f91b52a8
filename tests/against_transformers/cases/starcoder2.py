from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Starcoder2", {
    "plain": {"num_key_value_heads": 2, "sliding_window": 5},
    "bare": {"num_key_value_heads": 1, "use_bias": False, "tie_word_embeddings": False, "hidden_act": "relu",
             "norm_epsilon": 1e-3},
})
