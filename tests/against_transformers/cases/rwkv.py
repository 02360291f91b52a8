from __future__ import annotations

from against_transformers.tiny import Case

TINY = {"vocab_size": 67, "hidden_size": 35, "num_hidden_layers": 3, "context_length": 32, "rescale_every": 0,
        "use_cache": False}  # with it the class has no gradients: it writes into the tensors of its state
CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "tied": {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-3},
    "widths": {"intermediate_size": 17, "num_hidden_layers": 2},
    "rescaled": {"rescale_every": 6}}
CASES = [Case(f"rwkv-{name}", "RwkvConfig", "RwkvForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[0]
