from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 66, "hidden_size": 35, "num_hidden_layers": 3,
        "num_attention_heads": 5, "intermediate_size": 23, "type_vocab_size": 1, "pad_token_id": 1,
        "attention_window": [4, 8, 4]}
ENCODERS = with_heads("Longformer", {
    "plain": {}, "one_window": {"attention_window": 6, "type_vocab_size": 2, "pad_token_id": 0, "hidden_act": "relu"}},
    TINY)
