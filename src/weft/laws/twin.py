"""Twins: small models with the structure of a configuration, on which every law runs in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.core.errors import WeftError
from weft.core.model import ModelConfig, parameter_count, parse_model
from weft.laws.sizes import SizeLimits, scale_of, smaller
from weft.laws.subject import whole_subject

SMALL = SizeLimits(d_head=8, heads=True, divisor=1, repeats=2, vocabulary=64, reach=7, length=64, original=6)
"""A twin whose windows, convolutions and lengths a row of eleven tokens crosses."""

EVERYTHING = 10**9

NARROW = replace(SMALL, repeats=1, reach=EVERYTHING, length=EVERYTHING, original=EVERYTHING)
"""A narrow twin with the configuration's own windows and lengths."""

WIDE = SizeLimits(d_head=None, heads=False, divisor=1, repeats=1, vocabulary=64, reach=7, length=64, original=6)
"""A twin with the configuration's own widths."""

MOST_PARAMETERS = 60_000_000
"""The most parameters of a twin with the configuration's own widths; larger ones take longer than some seconds."""


@dataclass(frozen=True)
class Twin:
    """The configuration of a twin, and what it changes, in words."""

    config: ModelConfig
    changes: str


def shrink(config: ModelConfig, sizes: SizeLimits = SMALL) -> Twin:
    """The smallest twin of the given sizes that builds and runs.

    If a part does not allow so small a width, larger heads are tried, then the configuration's numbers of heads, then
    its widths.
    """
    for candidate in _candidates(sizes):
        small = _shrunken(config, candidate)
        if small is not None and _runs(small):
            return Twin(small, _words(config, small, candidate))
    return Twin(config, "nothing: no smaller twin builds")


def narrowed(config: ModelConfig, steps: int) -> Twin:
    """The smallest twin with the configuration's own windows and lengths, or two thirds of ``steps`` tokens if that is
    less."""
    return shrink(config, replace(NARROW, reach=2 * steps // 3, length=steps, original=max(steps // 6, 6)))


def widened(config: ModelConfig) -> Twin | None:
    """A twin as wide as the configuration, or as wide as `MOST_PARAMETERS` allows; None if none builds."""
    for divisor in (1, 2, 4, 8, 16, 32):
        sizes = replace(WIDE, divisor=divisor)
        small = _shrunken(config, sizes)
        if small is not None and _affordable(small) and _runs(small):
            return Twin(small, _words(config, small, sizes))
    return None


def _candidates(sizes: SizeLimits) -> Iterator[SizeLimits]:
    for d_head in (sizes.d_head or 8, 16, 32, 64):
        yield replace(sizes, d_head=d_head)
    for d_head in (8, 16, 32, 64):
        yield replace(sizes, d_head=d_head, heads=False)
    yield replace(sizes, d_head=None)


def _shrunken(config: ModelConfig, sizes: SizeLimits) -> ModelConfig | None:
    """The configuration with the given sizes; None if that is not a valid configuration."""
    whole = config.dump()
    try:
        return parse_model(smaller(whole, scale_of(whole, sizes)))
    except WeftError:
        return None


def _runs(config: ModelConfig) -> bool:
    """Whether the model builds and runs on a few tokens. A part may raise any exception for a size that it does not
    support; what it raises at the configuration's own size, the laws report."""
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model = config.build()
            subject = whole_subject("", model)
            subject.whole(subject.inputs(1, 3, generator), subject.memory(1, generator))
    except Exception:
        return False
    return True


def _affordable(config: ModelConfig) -> bool:
    """Whether the model has at most `MOST_PARAMETERS`: by an upper bound, or else counted on the meta device."""
    tree = config.dump()
    widths = [value for name, value in _fields(tree) if name.startswith("d_")]
    parts = sum(name == "kind" for name, _ in _fields(tree)) * max(
        [1, *(value for name, value in _fields(tree) if name == "n_experts")])
    if 4 * max([1, *widths]) ** 2 * parts <= MOST_PARAMETERS:
        return True
    try:  # a part may raise any exception for a size that it does not support
        with torch.device("meta"):
            return parameter_count(config.build()) <= MOST_PARAMETERS
    except Exception:
        return False


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with an integer or a string, at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _fields(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _fields(item, name)
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, value


def _words(config: ModelConfig, small: ModelConfig, sizes: SizeLimits) -> str:
    before, after = config.dump(), small.dump()
    name = next((name for name in ("d_model", "d_embedding") if name in before), None)
    if name is None:
        width = "no widths"
    elif before[name] == after[name]:
        width = f"{name} {before[name]} as configured"
    else:
        width = f"{name} {after[name]} instead of {before[name]}"
    reach = "its own windows" if sizes.reach == EVERYTHING else f"windows of at most {sizes.reach} tokens"
    times = "once" if sizes.repeats == 1 else "at most twice"
    return f"{width}, repeated blocks {times}, vocabulary of {small.vocab_size}, {reach}"
