from __future__ import annotations

from against_transformers.tiny import relatives

FULL, SLIDING = "full_attention", "sliding_attention"
CASES = relatives("Olmo3", {
    "plain": {"num_key_value_heads": 2, "sliding_window": 5, "num_hidden_layers": 4},
    "scaled": {"num_key_value_heads": 3, "sliding_window": 4, "layer_types": [FULL, SLIDING, FULL],
               "rope_parameters": {FULL: {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0,
                                          "original_max_position_embeddings": 16},
                                   SLIDING: {"rope_type": "default", "rope_theta": 500.0}}},
})
