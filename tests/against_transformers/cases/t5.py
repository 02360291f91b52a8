from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "d_model": 24, "d_kv": 5, "d_ff": 22, "num_layers": 2, "num_decoder_layers": 3,
        "num_heads": 6, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
CHANGES: dict[str, dict[str, object]] = {
    "1.0": {}, "one_head": {"num_heads": 1, "d_kv": 24, "num_layers": 3, "num_decoder_layers": None},
    "gated_silu": {"feed_forward_proj": "gated-silu"}, "gelu": {"feed_forward_proj": "gelu"},
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated": {"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-3}}
CASES = [Case(f"t5-{name}", "T5Config", "T5ForConditionalGeneration", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
