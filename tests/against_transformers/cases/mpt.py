from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "max_seq_len": 48, "d_model": 35, "n_layers": 3, "n_heads": 5}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "clipped": {"attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.3}, "n_heads": 7},
    "untied": {"tie_word_embeddings": False, "n_heads": 1, "layer_norm_epsilon": 1e-3},
    "many_heads": {"d_model": 36, "n_heads": 12, "attn_config": {"alibi_bias_max": 16}},
    "old_names": {"hidden_size": 24, "num_attention_heads": 8, "num_hidden_layers": 2, "expansion_ratio": 3,
                  "norm_type": "layernorm", "no_bias": False, "learned_pos_emb": False}}
CASES = [Case(f"mpt-{name}", "MptConfig", "MptForCausalLM", {**TINY, **values}) for name, values in CHANGES.items()]
GRADIENTS = CASES[1]
