from __future__ import annotations

from against_transformers.tiny import relatives

CASES = relatives("Mistral", {
    "window": {"num_key_value_heads": 2, "sliding_window": 5},
    "no_window": {"num_key_value_heads": 1, "sliding_window": None, "head_dim": 14},
    "window_of_one": {"num_key_value_heads": 3, "sliding_window": 1, "tie_word_embeddings": True},
})
