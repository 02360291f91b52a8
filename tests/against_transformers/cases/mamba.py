from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "hidden_size": 20, "num_hidden_layers": 3, "state_size": 5}
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "biased": {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "conv_kernel": 2},
    "wide": {"expand": 3, "time_step_rank": 7, "state_size": 1, "layer_norm_epsilon": 1e-3},
    "own_inner": {"expand": 5, "intermediate_size": 20, "conv_kernel": 1, "time_step_min": 0.01}}
CASES = [Case(f"mamba-{name}", "MambaConfig", "MambaForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[1]
