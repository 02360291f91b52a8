"""Tiny models that no native class of `transformers` expresses, with weights large enough that every part shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from weft import api
from weft.checkpoints import save_checkpoint
from weft.core.config import parse_part
from weft.core.model import LanguageModel, ModelConfig
from weft.interop.convert import Converted
from weft.tokenizers import Tokenizer

VOCABULARY = 67


def pre(*layers: Any) -> dict[str, Any]:
    return {"kind": "pre", "norm": "rmsnorm", "layers": list(layers)}


def decoder(*blocks: Any, **top: Any) -> dict[str, Any]:
    return {"kind": "decoder", "vocab_size": VOCABULARY, "context": 32, "d_model": 24, "norm": "rmsnorm",
            "blocks": list(blocks), **top}


def attention(**values: Any) -> dict[str, Any]:
    return {"kind": "attention", "n_heads": 4, "position": "rope", **values}


UNTIED = {"kind": "linear", "tied": False, "bias": True}
DYNAMIC = {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "lstm": decoder({"repeat": 2, "of": [pre("lstm")]}),
    "s4d": decoder(pre({"kind": "s4d", "d_state": 8}, "glu"), readout=UNTIED),
    "convolution": decoder(pre({"kind": "gated_convolution", "d_conv": 3, "dilation": 2}), norm="layernorm"),
    "transformer": decoder({"repeat": 2, "of": [pre(attention(position="alibi", mask="causal & dilated(3, 2)"),
                                                    "mlp")]}),
    "hybrid": decoder(pre("lstm"), pre(attention(mask="causal & window(5)"), "glu"),
                      pre({"kind": "s4d", "d_state": 8})),
    "learned": decoder(pre(attention(position="none"), "lstm"), position={"kind": "learned", "max_length": 40}),
    "dynamic": decoder(pre(attention(position=DYNAMIC), "lstm")),
    "feedforward": {"kind": "feedforward", "vocab_size": VOCABULARY, "context": 32, "order": 4, "d_embedding": 12,
                    "d_hidden": 20}}
"""By name: recurrent, state-space, convolution, attention with unusual pieces, a mixture of them, positions of a table,
rotations that depend on the document's length, and a fixed context."""


def with_source(*layers: Any) -> dict[str, Any]:
    """An encoder-decoder whose decoder has these layers besides its cross-attention."""
    encoder = decoder(pre(attention(mask="bidirectional"), "glu"), kind="encoder")
    return decoder(pre(*layers, {"kind": "cross_attention", "n_heads": 4}), kind="encoder_decoder", tied_source=True,
                   encoder=encoder)


SOURCED: Mapping[str, Mapping[str, Any]] = {"hybrid": with_source("lstm", attention()), "recurrent": with_source("gru"),
                                            "dynamic": with_source(attention(position=DYNAMIC))}
"""Encoder-decoders by name: of mixed layers, of a recurrence alone, and with rotations that depend on the length."""

LARGER = {"vocab_size": 259, "encoder": {**SOURCED["hybrid"]["encoder"], "vocab_size": 259}}
"""Changes to them for the vocabulary of a tokenizer of bytes."""


def build(data: Mapping[str, Any]) -> LanguageModel:
    config = parse_part(("model",), data)
    assert isinstance(config, ModelConfig)
    torch.manual_seed(0)
    model = config.build()
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@cache
def model(name: str) -> LanguageModel:
    """The model of that name; it is shared, so nobody changes it."""
    return build(CONFIGS[name])


@cache
def sourced(name: str) -> LanguageModel:
    """The encoder-decoder of that name; it is shared, so nobody changes it."""
    return build(SOURCED[name])


def converted(of: LanguageModel, folder: Path, tokenizer: Tokenizer | None = None, **options: Any) -> Converted:
    """Its folder with code, ``folder / "b"``."""
    save_checkpoint(folder / "a", of, tokenizer)
    return api.convert(folder / "a", folder / "b", to="hf", with_code=True, **options)


def rows(lengths: tuple[int, ...] = (3, 11, 1, 7)) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def padded(given: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows as one batch and its mask; what pads is no id at all."""
    longest = max(map(len, given))
    pads = [[VOCABULARY] * (longest - len(row)) for row in given]
    flags = [[0] * len(pad) for pad in pads]
    ones = [[1] * len(row) for row in given]
    if side == "left":
        return (torch.tensor([pad + row for pad, row in zip(pads, given, strict=True)]),
                torch.tensor([zero + one for zero, one in zip(flags, ones, strict=True)]))
    return (torch.tensor([row + pad for pad, row in zip(pads, given, strict=True)]),
            torch.tensor([one + zero for zero, one in zip(flags, ones, strict=True)]))
