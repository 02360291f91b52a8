"""Channels: named values that a layer gives to later layers of the same call.

They serve value residuals (Zhou et al. 2024) and keys and values shared across layers (Brandon et al. 2024; YOCO, Sun
et al. 2024). A layer declares the channels that it gives (`Declared.gives`) and returns their values in `Output.given`;
a later one declares those that it takes (`Declared.takes`) and reads a value with `Span.take`. Blocks and stacks pass
the values on. A stack is refused when it is built if a channel would have no value when it runs. A channel exists
within one call only: what later calls need belongs in the state of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weft.core.errors import ConfigError, nearest


class Channel(NamedTuple):
    """A declaration that a layer gives or takes a value.

    Attributes:
        name: of the channel; a taker reads the value of the last layer before it that gave one of that name.
        sizes: numbers in which giver and taker must agree, for example heads and features of a token's values.
    """

    name: str
    sizes: tuple[int, ...] = ()


class LayerChannels(NamedTuple):
    """The channels of one layer, with the layer's path in the configuration."""

    place: str
    gives: tuple[Channel, ...]
    takes: tuple[Channel, ...]


def untaken(layers: Iterable[LayerChannels]) -> tuple[Channel, ...]:
    """The channels that layers, run in this order, take without an earlier one of them giving it."""
    available, missing = set[str](), list[Channel]()
    for layer in layers:
        missing += [channel for channel in layer.takes if channel.name not in available]
        available |= {channel.name for channel in layer.gives}
    return tuple(dict.fromkeys(missing))


def require_given(layers: Iterable[LayerChannels]) -> None:
    """Refuse layers, in the order in which they run, if one takes a channel that no earlier one gives.

    Raises:
        ConfigError: every taker without a giver, every giver after its taker, and all sizes that differ.
    """
    problems = list(_problems(list(layers)))
    if problems:
        raise ConfigError(problems)


def _problems(layers: list[LayerChannels]) -> Iterator[str]:
    for index, taker in enumerate(layers):
        for channel in taker.takes:
            earlier, later = ([(each.place, given) for each in some for given in each.gives
                               if given.name == channel.name] for some in (layers[:index], layers[index:]))
            if earlier and earlier[-1][1].sizes != channel.sizes:
                place, other = earlier[-1]
                yield (f"{taker.place}: takes {channel.name!r} of sizes {channel.sizes}, and {place} gives it of sizes "
                       f"{other.sizes}. Give both the same sizes.")
            elif later and not earlier:
                yield (f"{taker.place}: takes {channel.name!r}, which {later[0][0]} gives only after it. Put that one "
                       "before this one.")
            elif not earlier:
                known = [given.name for each in layers for given in each.gives]
                hint = nearest(channel.name, known) if known else "None gives anything."
                yield (f"{taker.place}: takes {channel.name!r}, which no layer gives. {hint} Put a layer that gives it "
                       "before this one.")
