"""PaLM: parallel blocks without biases, SwiGLU, one key/value head. Its weights are not published, so there is no
foreign format."""

from __future__ import annotations

from weft.families.family import Family
from weft.families.template import Fact, Layers

LAYER_NORM = {"kind": "layernorm", "bias": False}
TEMPLATE = {
    "kind": "decoder", "vocab_size": 256_000, "context": 2048, "d_model": Fact("d_model"), "embedding": {"std": 1.0},
    "blocks": Layers({"kind": "parallel", "norm": LAYER_NORM, "layers": [
        {"kind": "attention", "n_heads": Fact("n_heads"), "n_kv_heads": 1, "d_head": 256, "position": "rope"},
        {"kind": "glu", "d_ff": Fact("d_ff"), "activation": "silu"}]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": True}}
"""It is not published which features form a rotary pair. The paper's constant factor 1/sqrt(d_model) on the logits
(section 5, initialisation) is omitted, since the weight of the last norm can include it."""


PALM = Family(
    name="palm", template=TEMPLATE, source="Chowdhery et al. 2022 (arXiv:2204.02311), sections 2 and 2.1", native=None)
