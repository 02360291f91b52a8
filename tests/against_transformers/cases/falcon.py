from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
        "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1}
NEW = {"new_decoder_architecture": True}
RW = {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "biased": {"bias": True, "num_attention_heads": 3, "ffn_hidden_size": 40},
    "grouped": NEW | {"num_kv_heads": 2, "layer_norm_epsilon": 1e-3},
    "one_norm": NEW | {"num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    "ungrouped": NEW | {"num_attention_heads": 4, "activation": "relu"},
    "rw": RW, "rw_power_of_two": RW | {"num_attention_heads": 8, "hidden_size": 80},
    "heads_of_their_own": {"multi_query": False, "hidden_size": 60},
    "parallel_alibi": {"alibi": True, "hidden_size": 50, "num_attention_heads": 5},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8}}
CASES = [Case(f"falcon-{name}", "FalconConfig", "FalconForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[2]
