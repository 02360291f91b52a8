"""Mistral: Llama's format with a sliding window."""

from __future__ import annotations

from weft.families.family import Family, Native, Size
from weft.families.keys import Ignored
from weft.families.known.llama import (
    ATTENTION,
    GLU,
    HUB,
    LM_HEAD,
    TIED,
    VALUES,
    decoder,
    shapes,
    weights,
)
from weft.families.rope import Rotary
from weft.families.template import Hole
from weft.families.windows import one_window

V0_1 = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}

MISTRAL = Family(
    name="mistral",
    template=decoder(ATTENTION | {"bias": "none", "mask": Hole("mask")}, GLU | {"bias": False}),
    source="Jiang et al. 2023 (arXiv:2310.06825)",
    native=Native(
        model_type="mistral", architecture="MistralForCausalLM", architectures=("MistralModel",),
        keys=(*shapes(context=131072, d_ff=14336, n_kv_heads=8), *VALUES, TIED, Rotary(), one_window(4096),
              Ignored(("layer_types",), "not used: in the class of transformers all layers are alike, and so in Weft",
                      notify=True)),
        weights=weights, prefix="model.", tied=LM_HEAD),
    sizes=(
        Size("mistral-7b-v0.1", V0_1, 7_241_732_096, HUB),
        Size("mistral-7b-v0.3", V0_1 | {"vocab_size": 32768, "rope_theta": 1e6, "sliding_window": None},
             7_248_023_552, HUB),
        Size("mistral-nemo-12b", {"vocab_size": 131072, "hidden_size": 5120, "num_hidden_layers": 40,
                                  "head_dim": 128, "rope_theta": 1e6, "sliding_window": None, "rms_norm_eps": 1e-5},
             12_247_782_400, HUB),
    ))
