from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "hidden_size": 24, "num_hidden_layers": 3, "state_size": 5, "num_heads": 6, "head_dim": 8,
        "n_groups": 2, "chunk_size": 8, "initializer_range": 0.1, "eos_token_id": None}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "one_group": {"n_groups": 1, "tie_word_embeddings": True, "time_step_limit": [0.3, 0.8]},
    "biased": {"use_bias": True, "use_conv_bias": False, "conv_kernel": 2, "expand": 3, "num_heads": 3,
               "head_dim": 24, "n_groups": 3, "layer_norm_epsilon": 1e-3}}
CASES = [Case(f"mamba2-{name}", "Mamba2Config", "Mamba2ForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
