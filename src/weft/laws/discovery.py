"""From any registered part to the smallest subject that contains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.core.layer import Layer
from weft.core.model import MODELS, Counted, Encoder, LanguageModel
from weft.core.part_config import Dims, ModuleConfig, PartConfig
from weft.core.registry import REGISTRY
from weft.laws.subject import Subject, encoder_subject, layer_subject, model_subject

WIDTH, VOCABULARY, CONTEXT = 8, 11, 32
"""Dimensions of the models that contain the parts."""
ANEW = 20_261
"""Seed of the copy that is built anew; that of the part itself is another or none."""
COUNTED = 200
"""Tokens on which counted models are fitted: too few for every n-gram to occur, so that they back off."""


def subject_of(config: PartConfig, name: str, *, dtype: torch.dtype = torch.float64) -> Subject | None:
    """A small subject that contains the part.

    A part that does not run by itself is built inside another: a position scheme in attention or on a decoder's
    embeddings, a norm in a block, a readout on a decoder, a layer after the `giver` that it names. None for parts that
    no law applies to, such as optimizers and tokenizers.
    """
    host = host_of(config)
    if host is None:
        return None
    return replace(_subject(_built(host, dtype), name), rebuild=partial(_built_anew, host, dtype))


def _subject(built: nn.Module, name: str) -> Subject:
    if isinstance(built, LanguageModel):
        return model_subject(name, built)
    if isinstance(built, Encoder):
        return encoder_subject(name, built)
    assert isinstance(built, Layer)
    return layer_subject(name, built, WIDTH)


def every_example() -> Iterator[tuple[str, PartConfig]]:
    """Every example of every registered part, by a name such as ``mixer.attention.2``."""
    for part in REGISTRY.parts():
        for index, config in enumerate(part.examples()):
            yield f"{part.group}.{part.kind}.{index}", config


def _built(host: ModuleConfig, dtype: torch.dtype) -> nn.Module:
    """The host with noise on its constant weights, and with counts if it is counted."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        built: nn.Module = host.build(Dims(WIDTH, VOCABULARY, CONTEXT))
    finally:
        torch.set_default_dtype(before)
    _add_noise(built)
    if isinstance(built, Counted):  # without counts it would give the uniform distribution
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(built.vocab_size, (COUNTED,), generator=generator)
        built.fit(tokens, torch.rand(COUNTED, generator=generator) < 0.1)
    return built


def _built_anew(host: ModuleConfig, dtype: torch.dtype) -> nn.Module:
    """The host built with another seed, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(ANEW)
        return _built(host, dtype).eval()


@torch.no_grad()
def _add_noise(module: nn.Module) -> None:
    """Add noise to parameters with constant initial values (biases of zero, gains of one), with which a defective part
    may obey the laws by chance."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(parameter.dtype), alpha=0.1)


def host_of(config: PartConfig) -> ModuleConfig | None:
    """The configuration of a layer or a model that contains the part; None if no law applies to the part."""
    mlp = {"kind": "mlp", "d_ff": 12}
    if not isinstance(config, ModuleConfig):
        return None
    match config.group:
        case "mixer" | "feedforward":
            giver = config.giver()
            return config if giver is None else _part("block", kind="pre", layers=[giver, config], norm="none")
        case "block" | "model" | "encoder":
            return config
        case "position":
            scheme = config.build_for_heads(Dims(WIDTH, VOCABULARY, CONTEXT), 2, WIDTH // 2)  # type: ignore[attr-defined]
            if "embeddings" in scheme.acts_on:
                block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}]}
                return _part("model", kind="decoder", position=config, blocks=[block],
                             readout={"kind": "linear", "tied": False})
            return _part("mixer", kind="attention", n_heads=2, position=config)
        case "position_table":
            return _part("mixer", kind="attention", n_heads=2, position={"kind": "deberta", "table": config})
        case "rope_scaling":
            return _part("mixer", kind="attention", n_heads=2, position={"kind": "rope", "scaling": config})
        case "norm":
            return _part("block", kind="sandwich", layers=["gru", mlp], norm=config)
        case "head":
            both_ways = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
            return _part("encoder", kind="encoder", blocks=[{"kind": "pre", "layers": [both_ways]}], head=config)
        case "readout":
            return _part("model", kind="decoder", blocks=[{"kind": "pre", "layers": ["gru"]}], readout=config)
    return None


def _part(group: str, *, kind: str, **fields: Any) -> ModuleConfig:
    if group in MODELS:
        fields |= {"vocab_size": VOCABULARY, "d_model": WIDTH, "context": CONTEXT}
    found = REGISTRY.get((group,), kind).model_validate(fields)
    assert isinstance(found, ModuleConfig), "a layer, block or model"
    return found
