from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 35, "num_hidden_layers": 3,
        "num_attention_heads": 5, "ffn_dim": 22}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "350m": {"do_layer_norm_before": False, "word_embed_proj_dim": 12},
    "wide_embeddings": {"word_embed_proj_dim": 40, "tie_word_embeddings": False, "num_attention_heads": 7},
    "no_last_norm": {"_remove_final_layer_norm": True, "activation_function": "gelu", "pad_token_id": 5},
    "unbiased": {"enable_bias": False, "layer_norm_elementwise_affine": False, "num_attention_heads": 1},
    "post_unbiased": {"enable_bias": False, "do_layer_norm_before": False, "_remove_final_layer_norm": True}}
CASES = [Case(f"opt-{name}", "OPTConfig", "OPTForCausalLM", {**TINY, **values}) for name, values in CHANGES.items()]
