from __future__ import annotations

from against_transformers.tiny import with_heads

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 40, "num_hidden_layers": 4,
        "num_attention_heads": 5, "intermediate_size": 23, "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
ENCODERS = with_heads("ModernBert", {
    "plain": {}, "biased": {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
                            "decoder_bias": False, "classifier_activation": "relu", "hidden_activation": "silu"},
    "own_types": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
                  "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700.0},
                                      "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}}}, TINY)
