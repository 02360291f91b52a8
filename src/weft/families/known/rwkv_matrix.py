"""RWKV-5, 6 and 7: blocks of time mixing with matrix-valued states and channel mixing, embeddings that a norm follows.

`transformers` has no classes for them. Their original files (``.pth``) are read by `weft.interop.rwkv`.
"""

from __future__ import annotations

from typing import Any

from weft.families.family import Family, Size
from weft.families.template import Facts, Hole, Layers

LAYER_NORM = {"kind": "layernorm", "eps": 1e-5}
HEADS = {"n_heads": Hole("n_heads"), "d_head": Hole("d_head"), "norm_eps": 64e-5}


def _model(mixer: dict[str, Any], *, receptance: bool = True) -> dict[str, Any]:
    channel = {"kind": "channel_mix", "d_ff": Hole("d_ff"), "receptance": receptance}
    return {"kind": "decoder", "vocab_size": Hole("vocab_size"), "context": Hole("context"), "d_model": Hole("d_model"),
            "embedding": {"norm": LAYER_NORM},
            "blocks": Layers({"kind": "pre", "norm": LAYER_NORM, "layers": [mixer, channel]}), "norm": LAYER_NORM,
            "readout": {"kind": "linear", "tied": False}}


def _facts(d_model: int, n_layers: int, d_ff: int, **others: Any) -> Facts:
    return {"vocab_size": 65536, "context": 4096, "d_model": d_model, "n_layers": n_layers, "n_heads": d_model // 64,
            "d_head": 64, "d_ff": d_ff, **others}


def _size(name: str, parameters: int, d_model: int, n_layers: int, **others: Any) -> Size:
    return Size(name, _facts(d_model, n_layers, int(3.5 * d_model) // 32 * 32, **others), parameters,
                "Peng et al. 2024, abstract", rounded=2)


RWKV5 = Family(
    name="rwkv5", template=_model({"kind": "rwkv5"} | HEADS), native=None,
    source="Peng et al. 2024 (arXiv:2404.05892), section 4.1",
    sizes=(_size("eagle-0.4b", 460_000_000, 1024, 24), _size("eagle-7b", 7_500_000_000, 4096, 32)))
RWKV6 = Family(
    name="rwkv6", template=_model({"kind": "rwkv6", "shift_rank": Hole("shift_rank"), "decay_rank": Hole("decay_rank")}
                                  | HEADS), native=None,
    source="Peng et al. 2024 (arXiv:2404.05892), section 4.2",
    sizes=(_size("finch-1.6b", 1_600_000_000, 2048, 24, shift_rank=32, decay_rank=64),
           _size("finch-3b", 3_100_000_000, 2560, 32, shift_rank=32, decay_rank=64)))
_RANKS = ("decay_rank", "rate_rank", "value_rank", "gate_rank")


def _goose(name: str, parameters: int, d_model: int, n_layers: int, *ranks: int) -> Size:
    facts = _facts(d_model, n_layers, 4 * d_model, value_residual=[index > 0 for index in range(n_layers)])
    return Size(name, {**facts, **dict(zip(_RANKS, ranks, strict=True))}, parameters,
                "Peng et al. 2025, abstract, and the released models' names", rounded=2)


RWKV7 = Family(
    name="rwkv7", template=_model({"kind": "rwkv7", "value_residual": Hole("value_residual", each=True)} | HEADS
                                  | {name: Hole(name) for name in _RANKS}, receptance=False), native=None,
    source="Peng et al. 2025 (arXiv:2503.14456), section 4",
    sizes=(_goose("goose-0.19b", 190_000_000, 768, 12, 64, 64, 32, 128),
           _goose("goose-1.5b", 1_500_000_000, 2048, 24, 96, 96, 64, 256),
           _goose("goose-2.9b", 2_900_000_000, 2560, 32, 96, 96, 64, 320)))
