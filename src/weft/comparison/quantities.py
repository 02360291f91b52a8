"""What a model is and costs, read from its shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.memory import state_sizes
from weft.analysis.parts import EMBEDDINGS, LOGITS, count_parameters
from weft.analysis.shapes import built_empty, shape_of
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, ModelConfig, language_model
from weft.core.part_config import PartConfig
from weft.core.traits import Trait
from weft.training.config import RunConfig
from weft.training.flops import model_flops_per_token


@dataclass(frozen=True)
class Size:
    """Of a model before it is trained.

    Attributes:
        parameters: all, shared ones once.
        embeddings: token embeddings and readout among them.
    """

    parameters: int
    embeddings: int


def shapes(config: ModelConfig) -> tuple[LanguageModel, FakeTensorMode]:
    """The model without its numbers."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return language_model(shape_of(config, mode, None), "comparing"), mode


def size_of(config: ModelConfig) -> Size:
    """Parameters of a model; none of one that is counted."""
    model = built_empty(config)
    if Trait.NOT_DIFFERENTIABLE in traits_of(model):
        return Size(0, 0)
    counted = count_parameters(model)
    ends = sum(part.numbers for part in counted.parts if part.part.endswith((EMBEDDINGS, LOGITS)))
    return Size(counted.total, ends)


def is_trained(config: ModelConfig) -> bool:
    """Whether gradients train the model; others are counted."""
    return Trait.NOT_DIFFERENTIABLE not in traits_of(built_empty(config))


def flops_per_token(run: RunConfig) -> float:
    """Operations of training, forward and backward, per token of a window of the run's context."""
    return model_flops_per_token(shapes(run.model)[0], run.context)


def state_bytes(config: ModelConfig, contexts: list[int]) -> dict[int, int]:
    """Bytes of the state of one row after so many tokens, as far as the model reaches."""
    model, mode = shapes(config)
    reach = model.limit()
    within = [context for context in contexts if reach is None or context <= reach]
    states = state_sizes(model, mode, 1, within)
    return {} if states is None else {each.context: each.bytes for each in states.sizes}


def kind_of(config: ModelConfig) -> str:
    """The model in one phrase: ``decoder: attention, glu``."""
    kinds = list(dict.fromkeys(_layers(config)))
    return f"{config.kind}: {', '.join(kinds)}" if kinds else config.kind


def _layers(part: PartConfig) -> Iterator[str]:
    """Kinds of mixers and feed-forwards, in the order of the file."""
    for name in type(part).model_fields:
        value = getattr(part, name)
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for inner in inside:
            if isinstance(inner, PartConfig):
                if inner.group in ("mixer", "feedforward"):
                    yield inner.kind
                yield from _layers(inner)
