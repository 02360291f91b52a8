"""Qwen 1.5, 2 and 2.5: Llama's format with biases on queries, keys and values, and windows on some layers."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import KeyRule
from weft.families.known.llama import ATTENTION, GLU, LM_HEAD, TIED, VALUES, decoder, shapes, weights
from weft.families.rope import Rotary
from weft.families.template import Fact
from weft.families.windows import windows_by_layer

WINDOWED = ATTENTION | {"mask": Fact("masks", each=True)}
KEYS: tuple[KeyRule, ...] = (*shapes(context=32768, d_ff=22016, n_kv_heads=None, vocab_size=151936), *VALUES, TIED,
                             Rotary(), windows_by_layer())


QWEN2 = Family(
    name="qwen2", template=decoder(WINDOWED | {"bias": "qkv"}, GLU | {"bias": False}),
    source="Yang et al. 2024 (arXiv:2407.10671); Qwen Team 2024 (arXiv:2412.15115)",
    native=Native(model_type="qwen2", architecture="Qwen2ForCausalLM", architectures=("Qwen2Model",), keys=KEYS,
                  weights=weights, prefix="model.", tied=LM_HEAD))
