from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 35, "num_hidden_layers": 3,
        "num_attention_heads": 5, "intermediate_size": 23, "type_vocab_size": 1, "pad_token_id": 1}
ENCODERS = with_heads("Roberta", {
    "plain": {}, "padding_0": {"pad_token_id": 0, "type_vocab_size": 2, "layer_norm_eps": 1e-3, "hidden_act": "relu"}},
    TINY)
