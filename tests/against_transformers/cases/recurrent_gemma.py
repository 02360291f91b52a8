from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"attention_window_size": 5, "num_key_value_heads": 1}
CASES = relatives("RecurrentGemma", {
    "plain": {**SMALL, "num_hidden_layers": 4},
    "wider": {**SMALL, "num_key_value_heads": 3, "lru_width": 60, "conv1d_width": 3, "logits_soft_cap": 2.0,
              "attention_bias": True, "rms_norm_eps": 1e-3, "hidden_activation": "gelu",
              "block_types": ["attention", "recurrent"],
              "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75}},
})
GRADIENTS = CASES[0]
