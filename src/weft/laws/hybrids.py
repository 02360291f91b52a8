"""Random hybrids: decoders of three or more blocks drawn from everything that is registered."""

from __future__ import annotations

import random
from typing import Any

from weft.core.config import Dims, PartConfig
from weft.core.layer import Part, traits_of
from weft.core.registry import REGISTRY
from weft.core.traits import Trait
from weft.laws.discovery import CONTEXT, VOCABULARY, WIDTH
from weft.positions.base import PositionConfig, PositionScheme


def random_hybrid(seed: int) -> PartConfig:
    """A decoder's configuration that the seed determines: blocks, norms, mixers, feed-forwards and positions are drawn
    from the registered parts' own examples, plugins included."""
    draw = random.Random(seed)
    blocks = [_block(draw) for _ in range(draw.randint(3, 4))]
    place = draw.choice(_causal("position", "embeddings"))
    return REGISTRY.get(("model",), "decoder").model_validate({
        "vocab_size": VOCABULARY, "d_model": WIDTH, "context": CONTEXT, "blocks": blocks, "position": place,
        "norm": draw.choice(_examples("norm")), "readout": {"kind": "linear", "tied": False}})


def _block(draw: random.Random) -> dict[str, Any]:
    mixer = draw.choice(_causal("mixer"))
    if mixer.kind == "attention" and draw.random() < 0.5:
        schemes = _causal("position", "queries_keys") + _causal("position", "scores")
        mixer = mixer.model_copy(update={"position": draw.choice(schemes), "d_head": 4})
    layers = [mixer, draw.choice(_examples("feedforward"))]
    return {"kind": draw.choice(REGISTRY.kinds(("block",))), "norm": draw.choice(_examples("norm")),
            "layers": layers[:draw.randint(1, 2)]}


def _examples(group: str) -> list[PartConfig]:
    return [config for part in REGISTRY.parts(group) for config in part.examples()]


def _causal(group: str, *points: str) -> list[PartConfig]:
    """The group's examples that keep a state; of position schemes, those that act on one of ``points`` or nowhere."""
    found = []
    for config in _examples(group):
        if isinstance(config, PositionConfig):
            built: Part = config.build_for_heads(Dims(WIDTH, VOCABULARY, CONTEXT), 2, 4)
            fits = isinstance(built, PositionScheme) and (not built.acts_on or bool(built.acts_on & set(points)))
        else:
            module = config.build(Dims(WIDTH, VOCABULARY, CONTEXT))
            fits = Trait.BIDIRECTIONAL not in traits_of(module)
        if fits:
            found.append(config)
    return found
