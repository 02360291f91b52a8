"""Shrunken twins of a configuration: the same structure, small enough to run every law on in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from weft.core.errors import WeftError
from weft.core.model import ModelConfig, parameter_count, parse_model
from weft.laws.sizes import Sizes, scale_of, smaller
from weft.laws.subject import whole_subject

SMALL = Sizes(d_head=8, heads=True, divisor=1, repeats=2, vocabulary=64, reach=7, length=64, original=6)
"""A twin whose windows, convolutions and lengths a row of eleven tokens crosses."""

EVERYTHING = 10**9

NARROW = replace(SMALL, repeats=1, reach=EVERYTHING, length=EVERYTHING, original=EVERYTHING)
"""A narrow twin that reaches as far as the configuration does."""

WIDE = Sizes(d_head=None, heads=False, divisor=1, repeats=1, vocabulary=64, reach=7, length=64, original=6)
"""A twin of the configuration's own widths."""

MOST_PARAMETERS = 60_000_000
"""Of a twin with the configuration's own widths: wider ones take longer than a few seconds."""


@dataclass(frozen=True)
class Twin:
    """The configuration and what was changed, in words."""

    config: ModelConfig
    changes: str


def shrink(config: ModelConfig, sizes: Sizes = SMALL) -> Twin:
    """The smallest twin of those sizes that builds and runs.

    Where a part cannot be so narrow, heads twice as large are tried, then the numbers of heads are kept, then the
    widths.
    """
    for tried in _candidates(sizes):
        small = _shrunken(config, tried)
        if small is not None and _runs(small):
            return Twin(small, _words(config, small, tried))
    return Twin(config, "nothing: no smaller twin builds")


def narrowed(config: ModelConfig, steps: int) -> Twin:
    """The smallest twin that reaches as far as the configuration, or two thirds of ``steps`` if that is less."""
    return shrink(config, replace(NARROW, reach=2 * steps // 3, length=steps, original=max(steps // 6, 6)))


def widened(config: ModelConfig) -> Twin | None:
    """A twin as wide as the configuration, or as wide as `MOST_PARAMETERS` allow; None where none builds."""
    for divisor in (1, 2, 4, 8, 16, 32):
        tried = replace(WIDE, divisor=divisor)
        small = _shrunken(config, tried)
        if small is not None and _affordable(small) and _runs(small):
            return Twin(small, _words(config, small, tried))
    return None


def _candidates(sizes: Sizes) -> Iterator[Sizes]:
    for d_head in (sizes.d_head or 8, 16, 32, 64):
        yield replace(sizes, d_head=d_head)
    for d_head in (8, 16, 32, 64):
        yield replace(sizes, d_head=d_head, heads=False)
    yield replace(sizes, d_head=None)


def _shrunken(config: ModelConfig, sizes: Sizes) -> ModelConfig | None:
    """The configuration of those sizes; None where its rules forbid it."""
    whole = config.dump()
    try:
        return parse_model(smaller(whole, scale_of(whole, sizes)))
    except WeftError:
        return None


def _runs(config: ModelConfig) -> bool:
    """Whether the model builds and takes a few tokens. A part may raise anything where a size does not suit it, and
    what it raises at its own size the laws find."""
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
    """Whether it has at most `MOST_PARAMETERS`, counted, where that is in doubt, without memory for them."""
    tree = config.dump()
    widths = [value for name, value in _fields(tree) if name.startswith("d_")]
    parts = sum(name == "kind" for name, _ in _fields(tree)) * max(
        [1, *(value for name, value in _fields(tree) if name == "n_experts")])
    if 4 * max([1, *widths]) ** 2 * parts <= MOST_PARAMETERS:
        return True
    try:  # a part may raise anything where a size does not suit it
        with torch.device("meta"):
            return parameter_count(config.build()) <= MOST_PARAMETERS
    except Exception:
        return False


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with a number or a word, at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _fields(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _fields(item, name)
    elif isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, value


def _words(config: ModelConfig, small: ModelConfig, sizes: Sizes) -> str:
    before, after = config.dump(), small.dump()
    name = next((name for name in ("d_model", "d_embedding") if name in before), None)
    if name is None:
        width = "no widths"
    elif before[name] == after[name]:
        width = f"{name} {before[name]} kept"
    else:
        width = f"{name} {after[name]} for {before[name]}"
    reach = "reaches kept" if sizes.reach == EVERYTHING else f"reaches of at most {sizes.reach} tokens"
    times = "once" if sizes.repeats == 1 else "at most twice"
    return (f"{width}, repeated blocks {times}, {small.vocab_size} ids, {reach}")
