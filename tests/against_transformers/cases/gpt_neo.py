from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "max_position_embeddings": 48, "hidden_size": 35, "num_layers": 3, "num_heads": 5,
        "attention_types": [[["global", "local", "local"], 1]], "window_size": 5}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "all_local": {"attention_types": [[["local"], 3]], "window_size": 1, "intermediate_size": 17},
    "all_global": {"attention_types": [[["global"], 1], [["global"], 2]], "activation_function": "relu"},
    "untied": {"tie_word_embeddings": False, "num_heads": 7, "layer_norm_epsilon": 1e-3, "window_size": 100},
    "old_names": {"num_attention_heads": 1, "num_hidden_layers": 2, "attention_types": [[["global", "local"], 1]]}}
CASES = [Case(f"gpt_neo-{name}", "GPTNeoConfig", "GPTNeoForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
