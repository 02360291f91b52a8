from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Qwen2", {
    "plain": {"num_key_value_heads": 2},
    "some_windows": {"num_key_value_heads": 3, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
                     "tie_word_embeddings": True},
    "unused_window": {"num_key_value_heads": 6, "use_sliding_window": False, "sliding_window": 4},
    "named_layers": {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0,
                     "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
})
