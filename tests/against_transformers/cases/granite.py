from __future__ import annotations

from against_transformers.tiny import relatives

NO_END = {"eos_token_id": None}
CASES = relatives("Granite", {
    "plain": {**NO_END, "num_key_value_heads": 2, "embedding_multiplier": 3.0, "attention_multiplier": 0.4,
              "residual_multiplier": 0.3, "logits_scaling": 6.0},
    "biased": {**NO_END, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True,
               "tie_word_embeddings": True, "residual_multiplier": 1.7, "logits_scaling": 0.7, "hidden_act": "gelu"},
})
GRADIENTS = CASES[0]
