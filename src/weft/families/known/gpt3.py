"""GPT-3: GPT-2's architecture in eight sizes. Its weights are not published, so there is no foreign format."""

from __future__ import annotations

from weft.families.family import Family
from weft.families.template import Fact, Layers

LAYER_NORM = {"kind": "layernorm", "eps": 1e-5}
ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "all"}
TEMPLATE = {
    "kind": "decoder", "vocab_size": 50257, "context": 2048, "d_model": Fact("d_model"),
    "embedding": {"std": 0.02}, "position": {"kind": "learned", "max_length": 2048},
    "blocks": Layers({"kind": "pre", "norm": LAYER_NORM,
                      "layers": [ATTENTION, {"kind": "mlp", "activation": "gelu_tanh", "bias": True}]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": True}}
"""All layers use dense attention. In the paper every other layer is locally banded; the width of the band is not
published and does not affect the number of parameters."""


GPT3 = Family(
    name="gpt3", template=TEMPLATE, source="Brown et al. 2020 (arXiv:2005.14165), section 2.1", native=None)
