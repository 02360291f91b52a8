"""Mistral: Llama's format with a sliding window."""

from __future__ import annotations

from weft.families.family import Family, Native
from weft.families.keys import Ignored
from weft.families.known.llama import (
    ATTENTION,
    GLU,
    LM_HEAD,
    TIED,
    VALUES,
    decoder,
    shapes,
    weights,
)
from weft.families.rope import Rotary
from weft.families.template import Fact
from weft.families.windows import one_window

MISTRAL = Family(
    name="mistral",
    template=decoder(ATTENTION | {"bias": "none", "mask": Fact("mask")}, GLU | {"bias": False}),
    source="Jiang et al. 2023 (arXiv:2310.06825)",
    native=Native(
        model_type="mistral", architecture="MistralForCausalLM", architectures=("MistralModel",),
        keys=(*shapes(context=131072, d_ff=14336, n_kv_heads=8), *VALUES, TIED, Rotary(), one_window(4096),
              Ignored(("layer_types",), "not used: in the class of transformers all layers are alike, and so in Weft",
                      notify=True)),
        weights=weights, prefix="model.", tied=LM_HEAD))
