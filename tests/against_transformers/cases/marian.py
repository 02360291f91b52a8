from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "pad_token_id": 66, "decoder_start_token_id": 66, "d_model": 24,
        "max_position_embeddings": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 22,
        "decoder_ffn_dim": 31, "encoder_attention_heads": 6, "decoder_attention_heads": 4}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "opus": {"scale_embedding": True, "activation_function": "swish"}}
CASES = [Case(f"marian-{name}", "MarianConfig", "MarianMTModel", {**TINY, **values})
         for name, values in CHANGES.items()]
