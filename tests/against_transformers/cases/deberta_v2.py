from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 30, "num_hidden_layers": 3,
        "num_attention_heads": 5, "intermediate_size": 23, "relative_attention": True, "position_buckets": 4,
        "max_relative_positions": 16, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
        "norm_rel_ebd": "layer_norm", "position_biased_input": False, "pooler_hidden_size": 30}
ENCODERS = with_heads("DebertaV2", {
    "plain": {}, "own": {"share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True,
                         "type_vocab_size": 2},
    "c2p": {"pos_att_type": "c2p", "share_att_key": False, "position_buckets": -1, "max_relative_positions": 5},
    "p2c": {"pos_att_type": ["p2c"], "share_att_key": False, "hidden_act": "relu"},
    "narrow": {"embedding_size": 11, "max_relative_positions": -1}, "own_names": {"legacy": False}}, TINY)
