from __future__ import annotations

from against_transformers.tiny import relatives

IDS = {"pad_token_id": None}
CASES = relatives("SmolLM3", {
    "plain": {**IDS, "num_key_value_heads": 2, "no_rope_layer_interval": 2},
    "windows": {**IDS, "num_key_value_heads": 3, "no_rope_layers": [0, 1, 0], "use_sliding_window": True,
                "sliding_window": 5, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
})
