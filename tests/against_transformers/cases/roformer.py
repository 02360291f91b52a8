from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 30, "num_hidden_layers": 3,
        "num_attention_heads": 5, "intermediate_size": 23}
ENCODERS = with_heads("RoFormer", {
    "plain": {}, "narrow": {"embedding_size": 7, "hidden_act": "relu"},
    "wide": {"embedding_size": 41, "type_vocab_size": 1, "layer_norm_eps": 1e-3}}, TINY)
