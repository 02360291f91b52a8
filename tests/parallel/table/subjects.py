"""What the equivalence table trains: for every registered mixer a tiny decoder, on a text of short documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.core.model import Model
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY
from weft.data import TokenStream
from weft.training import RunConfig, parse_run
from weft.training.run_training import build_model

STEPS, ROWS, CONTEXT, WIDTH, VOCABULARY = 50, 4, 12, 8, 12
"""Of a run; rows divide among two processes, and so do tokens, features and ids."""
SOURCE = "reads an encoded source, which a decoder on its own does not have"


def mixers() -> dict[str, PartConfig | str]:
    """Of every registered mixer the first example that a decoder can train, its dropout set to zero, since every way to
    train draws other entries to drop; or why there is none."""
    return {part.kind: _example(part) for part in REGISTRY.parts("mixer")
            if part.__module__.startswith("weft.")}


def _example(part: type[PartConfig]) -> PartConfig | str:
    for config in part.examples():
        layer: Any = config.build(Dims(WIDTH, VOCABULARY, CONTEXT))  # type: ignore[attr-defined]
        if layer.declares().source_width is not None:
            return SOURCE
        if Trait.BIDIRECTIONAL not in traits_of(layer):
            return part.model_validate(_undropped(config.model_dump()))
    return "has no causal form"


def _undropped(settings: Any) -> Any:
    """Settings with every dropout in them set to zero."""
    if isinstance(settings, Mapping):
        return {name: 0.0 if name == "dropout" else _undropped(value) for name, value in settings.items()}
    return settings


def run_of(mixer: PartConfig, *, steps: int = STEPS, training: Mapping[str, Any] | None = None,
           **model: Any) -> RunConfig:
    """A run of one block with this mixer, in float64, all gradients unclipped."""
    giver = mixer.giver()
    layers = [*([] if giver is None else [giver]), mixer, {"kind": "mlp", "d_ff": 12}]
    layers = [layer if isinstance(layer, Mapping) else layer.dump() for layer in layers]
    settings = {"steps": steps, "batch_size": ROWS, "dtype": "float64", "clip_norm": None,
                "optimizer": {"kind": "adamw", "lr": 5e-3}, "compute": {"matmul": "default"}}
    return parse_run({
        "model": {"kind": "decoder", "vocab_size": VOCABULARY, "d_model": WIDTH, "context": CONTEXT,
                  "readout": {"kind": "linear", "tied": False}, "blocks": [{"kind": "pre", "layers": layers}], **model},
        "training": {**settings, **(training or {})}})


def fresh_model(config: RunConfig) -> Model:
    """The run's model, with the same weights in every process."""
    torch.manual_seed(0)
    return build_model(config)


def text(steps: int = STEPS) -> TokenStream:
    """Documents of some ten tokens, each of which mostly follows from the one before it."""
    count = steps * ROWS * CONTEXT + 1
    draws = np.random.default_rng(0)
    noise, begins = draws.integers(0, VOCABULARY, count), draws.random(count) < 0.1
    tokens = np.zeros(count, dtype=np.uint8)
    for index in range(1, count):
        tokens[index] = noise[index] if begins[index] or noise[index] < 3 else (3 * tokens[index - 1] + 1) % VOCABULARY
    begins[0] = True
    return TokenStream(tokens, begins, np.ones(count, dtype=np.uint8), False, VOCABULARY, "generated", "", "")
