"""RWKV-5, 6 and 7: blocks of time mixing with matrix-valued states and channel mixing, embeddings that a norm follows.

`transformers` has no classes for them. Their original files (``.pth``) are read by `weft.interop.rwkv`.
"""

from __future__ import annotations

from typing import Any

from weft.families.family import Family
from weft.families.template import Fact, Layers

LAYER_NORM = {"kind": "layernorm", "eps": 1e-5}
HEADS = {"n_heads": Fact("n_heads"), "d_head": Fact("d_head"), "norm_eps": 64e-5}


def _model(mixer: dict[str, Any], *, receptance: bool = True) -> dict[str, Any]:
    channel = {"kind": "channel_mix", "d_ff": Fact("d_ff"), "receptance": receptance}
    return {"kind": "decoder", "vocab_size": Fact("vocab_size"), "context": Fact("context"), "d_model": Fact("d_model"),
            "embedding": {"std": 0.02, "norm": LAYER_NORM},
            "blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "layers": [mixer, channel]}), "norm": LAYER_NORM,
            "readout": {"kind": "linear", "tied": False}}


RWKV5 = Family(
    name="rwkv5", template=_model({"kind": "rwkv5"} | HEADS), native=None,
    source="Peng et al. 2024 (arXiv:2404.05892), section 4.1")
RWKV6 = Family(
    name="rwkv6", template=_model({"kind": "rwkv6", "shift_rank": Fact("shift_rank"), "decay_rank": Fact("decay_rank")}
                                  | HEADS), native=None,
    source="Peng et al. 2024 (arXiv:2404.05892), section 4.2")
_RANKS = ("decay_rank", "rate_rank", "value_rank", "gate_rank")


RWKV7 = Family(
    name="rwkv7", template=_model({"kind": "rwkv7", "value_residual": Fact("value_residual", each=True)} | HEADS
                                  | {name: Fact(name) for name in _RANKS}, receptance=False), native=None,
    source="Peng et al. 2025 (arXiv:2503.14456), section 4")
