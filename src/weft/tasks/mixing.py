"""Measures of tasks on running text that is a mixture of sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import TypeVar

from weft.data.sources import Sources
from weft.tasks.validation import BITS_PER_BYTE, Validation

E = TypeVar("E")


def by_source(sources: Sources, examples: Mapping[str, E], measure: Callable[[E, int | None], Validation],
              batches: int | None) -> Validation:
    """Measures of a mixture: of each source by itself, and of text that is mixed by the weights.

    The loss is the mean of the sources' losses by weight, which is what training minimises, and not by how much of each
    was held out. Bits per byte are those of such a text: the mean of bits over the mean of bytes. Further measures are
    means by weight. A source of weight 0 is measured and adds nothing.

    Args:
        sources: with the weights.
        examples: held-out ones of each source.
        measure: measures those of one source, on at most so many batches.
        batches: in all, at least one for each source; None: all.
    """
    limit = None if batches is None else max(1, batches // len(examples))
    found = {name: measure(each, limit) for name, each in examples.items()}
    weights = dict(zip(sources.names, sources.weights(), strict=True))
    first = next(iter(found.values()))
    # Sources without weight are left out: what they measure may not even be finite.
    loss = sum(weights[name] * each.loss for name, each in found.items() if weights[name])
    bytes_each = sum(weights[name] * each.bytes / each.tokens for name, each in found.items() if weights[name])
    known = first.bits_per_byte is not None
    measures = {name: sum(weights[source] * each.measures[name] for source, each in found.items() if weights[source])
                for name in first.measures}
    own = {f"{measure}.{name}": value for name, each in found.items() for measure, value in each.named().items()}
    lost = sum(weights[name] * each.lost_bits_per_byte * each.bytes / each.tokens for name, each in found.items()
               if weights[name]) / bytes_each if known else 0.0
    return Validation(
        loss / log(2) / bytes_each + lost if known else None, loss, sum(each.tokens for each in found.values()),
        sum(each.bytes for each in found.values()),
        f"{first.protocol}; each of {len(found)} sources by itself, and means by their weights in the mixture",
        {**measures, **own}, first.criterion if first.criterion in (BITS_PER_BYTE, "loss", *measures) else "loss",
        first.rising, first.unit, lost)
