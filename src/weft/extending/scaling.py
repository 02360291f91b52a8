"""A model's configuration with its rotary positions rescaled for a longer context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from pydantic import BaseModel

from weft.checkpoints.tensors import assign_tensors, own_tensors
from weft.core.errors import InputError, UnsupportedError, nearest
from weft.core.model import LanguageModel, ModelConfig, language_model
from weft.core.part_config import parts_in
from weft.decoding.mode import device_of
from weft.positions.frequencies import FixedFrequencies, NoScalingConfig, RopeScalingConfig
from weft.positions.linear import LinearScalingConfig
from weft.positions.longrope import LongRopeConfig
from weft.positions.ntk import NtkScalingConfig
from weft.positions.rope import Rope, RopeConfig
from weft.positions.yarn import YarnConfig

Scaling: TypeAlias = Callable[[int, int], RopeScalingConfig]

FIXED: dict[str, Scaling] = {
    "linear": lambda trained, context: LinearScalingConfig(factor=context / trained),
    "ntk": lambda trained, context: NtkScalingConfig(factor=context / trained),
    "yarn": lambda trained, context: YarnConfig(factor=context / trained, original_length=trained),
}
"""The scalings that follow from the trained and the new length alone."""

SEARCHED = "longrope"
"""The scaling whose factors are searched for on a text."""

METHODS: tuple[str, ...] = (*FIXED, SEARCHED)


def require_extensible(model: LanguageModel, context: int, method: str) -> None:
    """Check that the model can be extended to ``context`` tokens by ``method``.

    Raises:
        InputError: an unknown method, or a context that is not longer than the model's.
        UnsupportedError: a model without rotary positions, one whose rotary positions are scaled already, or one that
            has a table of positions besides.
    """
    config, limit = model.config, model.limit()
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}.", where="method", remedy=nearest(method, METHODS))
    if context <= config.context:
        raise InputError(f"{context:,} tokens are no more than the model's context of {config.context:,}.",
                         where="context", remedy="Give a longer context.")
    found = [part for part in parts_in(config) if isinstance(part, RopeConfig)]
    if not found:
        raise UnsupportedError("the model has no rotary positions, which are what these methods rescale.",
                               where="model", remedy="Measure it at greater lengths as it is: weft eval --context.")
    if limit is not None and limit < context:
        raise UnsupportedError(f"the model also has a table of {limit:,} positions, which no scaling makes longer.",
                               where="model", remedy=f"Extend it to {limit:,} tokens at most.")
    scaled = sorted({rope.scaling.kind for rope in found} - {NoScalingConfig.kind})
    if scaled:
        raise UnsupportedError(f"the model's rotary positions are already scaled, by {', '.join(scaled)}.",
                               where="model", remedy="Extend the checkpoint that it was made from.")


def rescaled(config: ModelConfig, context: int, scaling: RopeScalingConfig) -> ModelConfig:
    """The configuration with ``scaling`` in all of its rotary positions, and with the new context."""
    made: ModelConfig = _with_scaling(config, scaling).model_copy(update={"context": context})
    return made


def built(config: ModelConfig) -> LanguageModel:
    """The language model of a configuration, with fresh weights; random numbers outside stay as they are."""
    with torch.random.fork_rng(devices=[]):
        return language_model(config.build(), "longer contexts")


def with_weights(config: ModelConfig, model: LanguageModel) -> LanguageModel:
    """The model of another configuration with this model's weights, in evaluation mode."""
    made = built(config)
    assign_tensors(made, own_tensors(model), where="model")
    return made.to(device_of(model)).eval()


def longrope(trained: int, context: int, factors: Sequence[float]) -> LongRopeConfig:
    """LongRoPE with these factors for documents of more than ``trained`` tokens, and none for shorter ones."""
    return LongRopeConfig(short_factor=(1.0,) * len(factors), long_factor=tuple(factors), original_length=trained,
                          extended_length=context)


def frequencies(model: LanguageModel) -> tuple[float, ...]:
    """The angular frequencies of the model's pairs, in radians per token.

    Raises:
        UnsupportedError: layers differ in them, and one list of factors cannot serve them all.
    """
    found = {part.frequencies.theta.key() for part in model.modules()
             if isinstance(part, Rope) and isinstance(part.frequencies, FixedFrequencies)}
    if len(found) != 1:
        raise UnsupportedError(f"the model's layers have {len(found)} different sets of rotary frequencies, and the "
                               "search finds factors for one.", where="model",
                               remedy=f"Use another method: {', '.join(FIXED)}.")
    own: tuple[float, ...] = found.pop()
    return own


def _with_scaling(value: Any, scaling: RopeScalingConfig) -> Any:
    """A configuration's value, with ``scaling`` in each of the rotary positions within it."""
    if isinstance(value, RopeConfig):
        return value.model_copy(update={"scaling": scaling})
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _with_scaling(getattr(value, name), scaling)
                                        for name in type(value).model_fields})
    if isinstance(value, list | tuple):
        return type(value)(_with_scaling(each, scaling) for each in value)
    return value
