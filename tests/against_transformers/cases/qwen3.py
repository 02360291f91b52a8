from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Qwen3", {
    "plain": {"num_key_value_heads": 2, "head_dim": 10},
    "biased": {"num_key_value_heads": 1, "head_dim": 14, "attention_bias": True, "tie_word_embeddings": True},
    "some_windows": {"num_key_value_heads": 3, "head_dim": 8, "use_sliding_window": True, "sliding_window": 4,
                     "max_window_layers": 2},
})
