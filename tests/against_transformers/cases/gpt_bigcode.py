from __future__ import annotations

from against_transformers.tiny import Case

SIZES = {"vocab_size": 67, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}
CASES = [Case(f"gpt_bigcode-{name}", "GPTBigCodeConfig", "GPTBigCodeForCausalLM", {**SIZES, **values})
         for name, values in {
             "plain": {},
             "all_heads": {"multi_query": False, "scale_attn_weights": False, "n_inner": 40,
                           "tie_word_embeddings": False, "activation_function": "relu"}}.items()]
