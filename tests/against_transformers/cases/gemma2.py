from __future__ import annotations

from against_transformers.tiny import relatives

SMALL = {"query_pre_attn_scalar": 20, "sliding_window": 5, "head_dim": 10}
CASES = relatives("Gemma2", {
    "plain": {**SMALL, "num_key_value_heads": 2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "biased": {**SMALL, "num_key_value_heads": 6, "attention_bias": True, "tie_word_embeddings": False,
               "hidden_activation": "gelu", "rms_norm_eps": 1e-3, "attn_logit_softcapping": None},
    "own_types": {**SMALL, "num_key_value_heads": 1, "query_pre_attn_scalar": 10, "final_logit_softcapping": None,
                  "layer_types": ["full_attention", "full_attention", "sliding_attention"],
                  "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}},
})
GRADIENTS = CASES[0]
