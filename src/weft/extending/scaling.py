"""Rescaling of the rotary positions in a model's configuration for a longer context."""

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
from weft.positions.frequencies import FixedFrequencies, LinearScalingConfig, NoScalingConfig, RopeScalingConfig
from weft.positions.longrope import LongRopeConfig
from weft.positions.ntk import NtkScalingConfig
from weft.positions.rope import Rope, RopeConfig
from weft.positions.yarn import YarnConfig

Scaling: TypeAlias = Callable[[int, int], RopeScalingConfig]

FIXED: dict[str, Scaling] = {"linear": lambda trained, context: LinearScalingConfig(factor=context / trained),
                             "ntk": lambda trained, context: NtkScalingConfig(factor=context / trained),
                             "yarn": lambda trained,
                             context: YarnConfig(factor=context / trained, original_length=trained)}
"""The scalings that are determined by the trained and the new length alone."""

SEARCHED = "longrope"
"""The scaling whose factors are searched for on a text."""

METHODS: tuple[str, ...] = (*FIXED, SEARCHED)


def require_extensible(model: LanguageModel, context: int, method: str) -> None:
    """Check that the model can be extended to ``context`` tokens by ``method``.

    Raises:
        InputError: an unknown method, or a context that is not longer than the model's.
        UnsupportedError: the model has no rotary positions, has rotary positions that are scaled already, or also has a
            table of positions that is shorter than ``context``.
    """
    config, limit = model.config, model.limit()
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}.", where="method", remedy=nearest(method, METHODS))
    if context <= config.context:
        raise InputError(f"{context:,} tokens are no more than the model's context of {config.context:,}.",
                         where="context", remedy="Give a longer context.")
    ropes = [part for part in parts_in(config) if isinstance(part, RopeConfig)]
    if not ropes:
        raise UnsupportedError("the model has no rotary positions, which are what these methods rescale.",
                               where="model", remedy="Measure it at greater lengths as it is: weft eval --lengths.")
    if limit is not None and limit < context:
        raise UnsupportedError(f"the model also has a table of {limit:,} positions, which no scaling makes longer.",
                               where="model", remedy=f"Extend it to {limit:,} tokens at most.")
    scaled = sorted({rope.scaling.kind for rope in ropes} - {NoScalingConfig.kind})
    if scaled:
        raise UnsupportedError(f"the model's rotary positions are already scaled, by {', '.join(scaled)}.",
                               where="model", remedy="Extend the checkpoint that it was made from.")


def rescaled(config: ModelConfig, context: int, scaling: RopeScalingConfig) -> ModelConfig:
    """Return the configuration with ``scaling`` in all of its rotary positions, and with the new context."""
    changed: ModelConfig = _with_scaling(config, scaling).model_copy(update={"context": context})
    return changed


def built(config: ModelConfig) -> LanguageModel:
    """Build the language model of a configuration, with freshly initialised weights, and restore the state of the
    random number generator."""
    with torch.random.fork_rng(devices=[]):
        return language_model(config.build(), "longer contexts")


def with_weights(config: ModelConfig, model: LanguageModel) -> LanguageModel:
    """Build the model of another configuration with this model's weights, in evaluation mode."""
    copied = built(config)
    assign_tensors(copied, own_tensors(model), where="model")
    return copied.to(device_of(model)).eval()


def longrope(trained: int, context: int, factors: Sequence[float]) -> LongRopeConfig:
    """Return LongRoPE with these factors for documents of more than ``trained`` tokens, and factors of 1 for shorter
    ones."""
    return LongRopeConfig(short_factor=(1.0,) * len(factors), long_factor=tuple(factors), original_length=trained,
                          extended_length=context)


def frequencies(model: LanguageModel) -> tuple[float, ...]:
    """Return the angular frequencies of the model's pairs of features, in radians per token. Raises `UnsupportedError`:
    layers have different frequencies, for which one list of factors does not suffice."""
    sets = {part.frequencies.theta.key() for part in model.modules()
            if isinstance(part, Rope) and isinstance(part.frequencies, FixedFrequencies)}
    if len(sets) != 1:
        raise UnsupportedError(f"the model's layers have {len(sets)} different sets of rotary frequencies, and the "
                               "search is for the factors of one.", where="model",
                               remedy=f"Use another method: {', '.join(FIXED)}.")
    common: tuple[float, ...] = sets.pop()
    return common


def _with_scaling(value: Any, scaling: RopeScalingConfig) -> Any:
    """Return a configuration's value with ``scaling`` in each of the rotary positions inside it."""
    if isinstance(value, RopeConfig):
        return value.model_copy(update={"scaling": scaling})
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _with_scaling(getattr(value, name), scaling)
                                        for name in type(value).model_fields})
    if isinstance(value, list | tuple):
        return type(value)(_with_scaling(each, scaling) for each in value)
    return value
