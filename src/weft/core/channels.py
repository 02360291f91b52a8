"""Channels: what a layer gives to later layers of the same call, and what it takes from earlier ones.

Value residuals (Zhou et al. 2024), keys and values shared across layers (Brandon et al. 2024; YOCO, Sun et al. 2024):
a layer declares what it gives (`Layer.gives`) and returns it in `Output.given`; a later one declares what it takes
(`Layer.takes`) and reads it by `Span.take`. Blocks and stacks pass it on, and a stack refuses when it is built what
would be missing when it runs. A channel lives within one call: what a later call needs is in somebody's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.core.errors import ConfigError, nearest


class Channel(NamedTuple):
    """What is given, or taken.

    Attributes:
        name: of the channel; a taker has what the last layer before it gave under that name.
        sizes: numbers that must be alike on both sides, such as heads and features of a token's values.
    """

    name: str
    sizes: tuple[int, ...] = ()


class Ends(NamedTuple):
    """The channels of a layer, and where it stands."""

    place: str
    gives: tuple[Channel, ...]
    takes: tuple[Channel, ...]


def untaken(layers: Iterable[Ends]) -> tuple[Channel, ...]:
    """What layers that run in this order take and none of them gives before."""
    known, found = set[str](), list[Channel]()
    for layer in layers:
        found += [channel for channel in layer.takes if channel.name not in known]
        known |= {channel.name for channel in layer.gives}
    return tuple(dict.fromkeys(found))


def require_given(layers: Iterable[Ends]) -> None:
    """Refuse layers, in the order in which they run, of which one takes what it would not get.

    Raises:
        ConfigError: a taker without a giver, a giver after its taker, or sizes that differ; every one of them.
    """
    problems = list(_problems(list(layers)))
    if problems:
        raise ConfigError(problems)


def _problems(layers: list[Ends]) -> Iterator[str]:
    for index, taker in enumerate(layers):
        for wanted in taker.takes:
            earlier, later = (list(_givers(some, wanted.name)) for some in (layers[:index], layers[index:]))
            if earlier and earlier[-1][1].sizes != wanted.sizes:
                place, given = earlier[-1]
                yield (f"{taker.place}: takes {wanted.name!r} of sizes {wanted.sizes}, and {place} gives it of sizes "
                       f"{given.sizes}. Give both the same sizes.")
            elif later and not earlier:
                yield (f"{taker.place}: takes {wanted.name!r}, which {later[0][0]} gives only after it. Put that one "
                       "before this one.")
            elif not earlier:
                known = [channel.name for each in layers for channel in each.gives]
                hint = nearest(wanted.name, known) if known else "None gives anything."
                yield (f"{taker.place}: takes {wanted.name!r}, which no layer gives. {hint} Put a layer that gives it "
                       "before this one.")


def _givers(layers: Iterable[Ends], name: str) -> Iterator[tuple[str, Channel]]:
    return ((each.place, channel) for each in layers for channel in each.gives if channel.name == name)
