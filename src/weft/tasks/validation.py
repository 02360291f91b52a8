"""Measures on held-out data, and the criterion of the best checkpoint among them.

Measures of tasks on running text that is a mixture of sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import log
from typing import TypeVar

from weft.core.strict_json import Record
from weft.data.stream import Sources

BITS_PER_BYTE, LOSS = "bits_per_byte", "loss"


@dataclass(frozen=True)
class Validation(Record):
    """Means over predictions on held-out data.

    Attributes:
        bits_per_byte: summed negative log2-likelihood divided by the bytes of text that the tokens represent, with
            ``lost_bits_per_byte``; None if the predictions represent no text, or what they lose of it is unknown.
        loss: per prediction, in nats or in the unit of the task's own loss.
        tokens: number of predictions (tokens, or examples, see ``unit``).
        bytes: of text that they represent.
        protocol: how predictions were made and counted.
        measures: further measures of the task by name, such as ``accuracy``.
        criterion: that chooses the best checkpoint: ``bits_per_byte``, ``loss``, or one of ``measures``.
        rising: whether higher is better.
        unit: name of a prediction.
        lost_bits_per_byte: the part of the bits per byte that is for text which the tokenizer loses
            (`weft.tokenizers.lost`).
    """

    bits_per_byte: float | None
    loss: float
    tokens: int
    bytes: int
    protocol: str
    measures: Mapping[str, float] = field(default_factory=dict)
    criterion: str = BITS_PER_BYTE
    rising: bool = False
    unit: str = "token"
    lost_bits_per_byte: float = 0.0

    @classmethod
    def of_text(cls, nats: float, lost: float, tokens: int, size: int, protocol: str,
                measures: Mapping[str, float] | None = None) -> Validation:
        """Means over tokens of text.

        Args:
            nats: summed negative log-likelihood of the tokens.
            lost: nats for text that they do not tell; NaN: unknown, and there are no bits per byte.
            size: bytes of text that they represent.
            protocol: see `Validation`.
            measures: see `Validation`.
        """
        known = size > 0 and not math.isnan(lost)
        return cls((nats + lost) / math.log(2) / size if known else None, nats / tokens, tokens, size, protocol,
                   measures or {}, BITS_PER_BYTE if known else LOSS,
                   lost_bits_per_byte=lost / math.log(2) / size if known else 0.0)

    def named(self) -> dict[str, float]:
        """Every measure by its name."""
        bits = {} if self.bits_per_byte is None else {BITS_PER_BYTE: self.bits_per_byte}
        return {**bits, LOSS: self.loss, **self.measures}

    @property
    def cost(self) -> float:
        """The criterion as a number of which less is better."""
        found = self.named()[self.criterion]
        return -found if self.rising else found

    def chosen(self) -> str:
        """The value and name of the criterion."""
        name = {BITS_PER_BYTE: "bits/byte"}.get(self.criterion, self.criterion)
        return f"{self.named()[self.criterion]:.4f} {name}"

    def line(self) -> str:
        """All measures in one line, each with its unit."""
        paid = paid_for(self.lost_bits_per_byte)
        bits = [] if self.bits_per_byte is None else [f"{self.bits_per_byte:.4f} bits/byte{paid}"]
        text = f"{self.tokens:,} {self.unit}s" + (f", {self.bytes:,} bytes" if self.bytes else "")
        return "  ".join([*bits, f"loss {self.loss:.4f} per {self.unit}" if not bits else
                          f"{self.loss:.4f} nats/{self.unit}",
                          *(f"{name} {value:.4f}" for name, value in self.measures.items()), f"({text})"])


def part_measured(batches: int | None, of: int) -> str:
    """How many of the batches were measured, as the end of a protocol; empty if all were."""
    return "" if batches is None or batches >= of else f"; {batches} of {of} batches"


def paid_for(lost: float, *, digits: int = 4) -> str:
    """How much of some bits per byte is for text that the tokenizer loses, in words; empty where it rounds to none."""
    return f" ({lost:.{digits}f} of them for text that the tokenizer loses)" if lost >= 0.5 * 10**-digits else ""


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
