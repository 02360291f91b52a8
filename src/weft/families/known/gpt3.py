"""GPT-3: GPT-2's architecture in eight sizes. Its weights are not published, so there is no foreign format."""

from __future__ import annotations

from weft.families.family import Family, Size
from weft.families.template import Hole, Layers

LAYER_NORM = {"kind": "layernorm", "eps": 1e-5}
ATTENTION = {"kind": "attention", "n_heads": Hole("n_heads"), "d_head": Hole("d_head"), "bias": "all"}
TEMPLATE = {
    "kind": "decoder", "vocab_size": 50257, "context": 2048, "d_model": Hole("d_model"),
    "position": {"kind": "learned", "max_length": 2048},
    "blocks": Layers({"kind": "pre", "norm": LAYER_NORM,
                      "layers": [ATTENTION, {"kind": "mlp", "activation": "gelu_tanh", "bias": True}]}),
    "norm": LAYER_NORM, "readout": {"kind": "linear", "tied": True}}
"""All layers use dense attention. In the paper every other layer is locally banded; the width of the band is not
published and does not affect the number of parameters."""

TABLE = "Brown et al. 2020, table 2.1"


def _size(name: str, parameters: int, rounded: int, n_layers: int, d_model: int, n_heads: int, d_head: int,
          source: str = TABLE) -> Size:
    return Size(name, {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_head": d_head}, parameters,
                source, rounded)


GPT3 = Family(
    name="gpt3", template=TEMPLATE, source="Brown et al. 2020 (arXiv:2005.14165), section 2.1", native=None,
    sizes=(
        _size("gpt3-small", 125_000_000, 3, 12, 768, 12, 64),
        _size("gpt3-medium", 350_000_000, 1, 24, 1024, 16, 64, f"{TABLE}, which rounds to 50 million"),
        _size("gpt3-large", 760_000_000, 3, 24, 1536, 16, 96),
        _size("gpt3-xl", 1_520_000_000, 3, 24, 2048, 24, 128,
              f"the row of {TABLE}, whose name says 1.3 billion: 24 heads of 128 are wider than d_model"),
        _size("gpt3-xl-16-heads", 1_300_000_000, 2, 24, 2048, 16, 128,
              f"{TABLE}, with the 16 heads that give the number in the row's name"),
        _size("gpt3-2.7b", 2_700_000_000, 2, 32, 2560, 32, 80),
        _size("gpt3-6.7b", 6_700_000_000, 2, 32, 4096, 32, 128),
        _size("gpt3-13b", 13_000_000_000, 2, 40, 5120, 40, 128, f"{TABLE}, with d_model 5120 for its misprint 5140"),
        _size("gpt3-175b", 175_000_000_000, 3, 96, 12288, 96, 128),
    ))
