from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "n_positions": 48, "n_embd": 35, "n_layer": 3, "n_head": 5}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "relu": {"afn": "relu", "n_head": 7}, "untied": {"tie_word_embeddings": False, "n_head": 1},
    "swish": {"afn": "swish", "layer_norm_epsilon": 1e-3},
    "old_names": {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "n_special": 0}}
CASES = [Case(f"openai-gpt-{name}", "OpenAIGPTConfig", "OpenAIGPTLMHeadModel", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
