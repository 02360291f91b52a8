"""Random hybrids: decoders of three or four blocks drawn from all registered parts."""

from __future__ import annotations

import random
from typing import Any, final

import torch

from weft.core.declarations import Trait
from weft.core.errors import ConfigError
from weft.core.layer import traits_of
from weft.core.part_config import Dims, ModuleConfig, PartConfig
from weft.core.registry import REGISTRY
from weft.laws.discovery import CONTEXT, VOCABULARY, WIDTH


@final
class Hybrids:
    """Draws decoders from the examples of all parts, plugins included, that are registered when it is created."""

    def __init__(self) -> None:
        self._mixers = _causal("mixer")
        self._feedforwards = _examples("feedforward")
        self._norms = _examples("norm")
        self._blocks = REGISTRY.kinds(("block",))
        self._embeddings = _causal("position", "embeddings")
        self._inside = _causal("position", "queries_keys") + _causal("position", "scores")

    def draw(self, seed: int) -> PartConfig:
        """The configuration of three or four blocks that the seed determines."""
        draw = random.Random(seed)
        blocks = [self._block(draw) for _ in range(draw.randint(3, 4))]
        return REGISTRY.get(("model",), "decoder").model_validate({
            "vocab_size": VOCABULARY, "d_model": WIDTH, "context": CONTEXT, "blocks": blocks,
            "position": draw.choice(self._embeddings), "norm": draw.choice(self._norms),
            "readout": {"kind": "linear", "tied": False}})

    def _block(self, draw: random.Random) -> dict[str, Any]:
        mixer = draw.choice(self._mixers)
        if {"position", "d_head"} <= type(mixer).model_fields.keys() and draw.random() < 0.5:
            position = draw.choice(self._inside)
            scheme = position.build_for_heads(Dims(WIDTH, VOCABULARY, CONTEXT), 2, 4)  # type: ignore[attr-defined]
            # Vectors on values are as wide as keys, and need a form of attention that makes all weights.
            bound = {"d_value": None, "backend": "auto"} if "values" in scheme.acts_on else {}
            other = mixer.model_copy(update={"position": position, "d_head": 4, **bound})
            mixer = other if _builds(other) else mixer
        giver = mixer.giver()
        layers = [mixer] if giver is None else [giver, mixer]
        return {"kind": draw.choice(self._blocks), "norm": draw.choice(self._norms),
                "layers": [*layers, draw.choice(self._feedforwards)][:len(layers) + draw.randint(0, 1)]}


def _builds(config: ModuleConfig) -> bool:
    """Whether the part takes its position scheme; some have no queries or values for one."""
    try:
        with torch.random.fork_rng(devices=[]):
            config.build(Dims(WIDTH, VOCABULARY, CONTEXT))
    except ConfigError:
        return False
    return True


def _examples(group: str) -> list[ModuleConfig]:
    return [config for part in REGISTRY.parts(group) for config in part.examples() if isinstance(config, ModuleConfig)]


def _causal(group: str, *points: str) -> list[ModuleConfig]:
    """The group's causal examples; of position schemes, those that act on one of ``points`` or nowhere."""
    return [config for config in _examples(group) if _fits(config, points)]


def _fits(config: ModuleConfig, points: tuple[str, ...]) -> bool:
    dims = Dims(WIDTH, VOCABULARY, CONTEXT)
    if config.group == "position":
        scheme = config.build_for_heads(dims, 2, 4)  # type: ignore[attr-defined]
        return not scheme.acts_on or bool(scheme.acts_on & set(points))
    return Trait.BIDIRECTIONAL not in traits_of(config.build(dims))
