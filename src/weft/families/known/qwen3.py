"""Qwen 3: a norm on each head's queries and keys before the rotation, and no biases."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import Read
from weft.families.known.llama import (
    BIASED,
    GLU,
    LM_HEAD,
    RMS_NORM,
    TIED,
    VALUES,
    attention_weights,
    decoder,
    glu_weights,
    outer_weights,
    shapes,
)
from weft.families.known.qwen2 import WINDOWED
from weft.families.rope import Rotary
from weft.families.template import Facts
from weft.families.weights import Rule
from weft.families.windows import windows_by_layer


def weights(facts: Facts) -> list[Rule]:
    """Return the rules of Llama's tensors and of the norms of queries and keys."""
    return [*outer_weights(), *attention_weights(facts, normed=True), *glu_weights()]


QWEN3 = Family(
    name="qwen3", template=decoder(WINDOWED | {"qk_norm": RMS_NORM}, GLU | {"bias": False}),
    source="Yang et al. 2025 (arXiv:2505.09388)",
    native=Native(
        model_type="qwen3", architecture="Qwen3ForCausalLM", architectures=("Qwen3Model",),
        keys=(*shapes(context=32768, d_ff=22016, n_kv_heads=32, vocab_size=151936, d_head=128), *VALUES, TIED,
              Rotary(), windows_by_layer(), Read("attention_bias", "attention_bias", bool, False, codec=BIASED)),
        weights=weights, prefix="model.", tied=LM_HEAD))
