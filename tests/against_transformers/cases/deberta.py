from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 30, "num_hidden_layers": 3,
        "num_attention_heads": 5, "intermediate_size": 23, "relative_attention": True, "max_relative_positions": 6,
        "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
ENCODERS = with_heads("Deberta", {
    "plain": {}, "added": {"position_biased_input": True, "type_vocab_size": 2, "max_relative_positions": -1},
    "c2p": {"pos_att_type": "c2p", "layer_norm_eps": 1e-3}, "p2c": {"pos_att_type": ["p2c"]},
    "narrow": {"embedding_size": 11, "hidden_act": "relu"}, "own_names": {"legacy": False}}, TINY)
