from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "d_model": 24, "max_position_embeddings": 48, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_ffn_dim": 22, "decoder_ffn_dim": 31, "encoder_attention_heads": 6, "decoder_attention_heads": 4}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "scaled": {"scale_embedding": True, "activation_function": "relu", "pad_token_id": 4},
    "one_layer": {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1}}
CASES = [Case(f"bart-{name}", "BartConfig", "BartForConditionalGeneration", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[1]
"""Token 4, whose embedding the class gives no gradient, is not among those of the gradients' rows."""
