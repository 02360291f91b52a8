from __future__ import annotations

from against_transformers.tiny import relatives

SHORT, LONG = [1.0, 1.1, 1.2, 1.3], [1.0, 2.0, 3.0, 4.0]
PLAIN = {"pad_token_id": 0, "eos_token_id": 1}
CASES = relatives("Phi3", {name: PLAIN | values for name, values in {
    "plain": {"num_key_value_heads": 2, "resid_pdrop": 0.1, "embd_pdrop": 0.2},
    "window": {"num_key_value_heads": 3, "sliding_window": 5, "tie_word_embeddings": True},
    "partial": {"num_key_value_heads": 1, "partial_rotary_factor": 0.5, "hidden_size": 72, "hidden_act": "gelu_new"},
    "longrope": {"num_key_value_heads": 6, "original_max_position_embeddings": 8, "max_position_embeddings": 32,
                 "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}},
    "su": {"num_key_value_heads": 2, "original_max_position_embeddings": 16,
           "rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG,
                            "original_max_position_embeddings": 16}},
    "yarn": {"num_key_value_heads": 2, "original_max_position_embeddings": 8, "partial_rotary_factor": 0.75,
             "rope_scaling": {"type": "yarn", "short_factor": SHORT[:3], "long_factor": LONG[:3]}},
}.items()})
GRADIENTS = CASES[2]
