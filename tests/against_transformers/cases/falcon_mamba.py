from __future__ import annotations

from against_transformers.cases.mamba import TINY
from against_transformers.tiny import Case

CHANGES: dict[str, dict[str, object]] = {
    "plain": {}, "untied": {"tie_word_embeddings": False, "mixer_rms_eps": 1e-2, "expand": 1, "use_bias": True}}
CASES = [Case(f"falcon_mamba-{name}", "FalconMambaConfig", "FalconMambaForCausalLM", {**TINY, **values})
         for name, values in CHANGES.items()]
GRADIENTS = CASES[1]
