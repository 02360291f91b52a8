"""Models whose weights are not published, so that there is no foreign format. GPT-3: GPT-2's architecture in eight
sizes. PaLM: parallel blocks without biases, SwiGLU, one key/value head."""

from __future__ import annotations

from weft.families.family import Family
from weft.families.template import Fact, Layers

GPT3_NORM = {"kind": "layernorm", "eps": 1e-5}
GPT3_ATTENTION = {"kind": "attention", "n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "bias": "all"}
GPT3_TEMPLATE = {
    "kind": "decoder", "vocab_size": 50257, "context": 2048, "d_model": Fact("d_model"),
    "embedding": {"std": 0.02}, "position": {"kind": "learned", "max_length": 2048},
    "blocks": Layers({"kind": "pre", "norm": GPT3_NORM,
                      "layers": [GPT3_ATTENTION, {"kind": "mlp", "activation": "gelu_tanh", "bias": True}]}),
    "norm": GPT3_NORM, "readout": {"kind": "linear", "tied": True}}
"""All layers use dense attention. In the paper every other layer is locally banded; the width of the band is not
published and does not affect the number of parameters."""


GPT3 = Family(
    name="gpt3", template=GPT3_TEMPLATE, source="Brown et al. 2020 (arXiv:2005.14165), section 2.1", native=None)


PALM_NORM = {"kind": "layernorm", "bias": False}
PALM_TEMPLATE = {
    "kind": "decoder", "vocab_size": 256_000, "context": 2048, "d_model": Fact("d_model"), "embedding": {"std": 1.0},
    "blocks": Layers({"kind": "parallel", "norm": PALM_NORM, "layers": [
        {"kind": "attention", "n_heads": Fact("n_heads"), "n_kv_heads": 1, "d_head": 256, "position": "rope"},
        {"kind": "glu", "d_ff": Fact("d_ff"), "activation": "silu"}]}),
    "norm": PALM_NORM, "readout": {"kind": "linear", "tied": True}}
"""It is not published which features form a rotary pair. The paper's constant factor 1/sqrt(d_model) on the logits
(section 5, initialisation) is omitted, since the weight of the last norm can include it."""


PALM = Family(
    name="palm", template=PALM_TEMPLATE, source="Chowdhery et al. 2022 (arXiv:2204.02311), sections 2 and 2.1",
    native=None)
