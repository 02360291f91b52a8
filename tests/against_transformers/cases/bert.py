from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 35, "num_hidden_layers": 3,
        "num_attention_heads": 5, "intermediate_size": 23}
ENCODERS = with_heads("Bert", {
    "plain": {}, "relu": {"hidden_act": "relu", "layer_norm_eps": 1e-3, "type_vocab_size": 1},
    "one_head": {"num_attention_heads": 1, "num_hidden_layers": 1, "type_vocab_size": 3}}, TINY)
