"""What is measured on held-out data, and which of it chooses the best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from weft.core.strict_json import Record

BITS_PER_BYTE, LOSS = "bits_per_byte", "loss"


@final
@dataclass(frozen=True)
class Validation(Record):
    """Means over the predictions that were made.

    Attributes:
        bits_per_byte: summed negative log2-likelihood over the bytes of text that the tokens stand for, exactly; None
            where what is predicted stands for no text.
        loss: per prediction: nats, or what else the task minimises.
        tokens: predictions made (tokens, or examples, see ``unit``).
        bytes: of text they stand for.
        protocol: how they were counted.
        measures: what else the task measures, by name, such as ``accuracy``.
        criterion: by which the best checkpoint is chosen: ``bits_per_byte``, ``loss``, or one of ``measures``.
        rising: whether more of it is better.
        unit: of a prediction.
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

    def named(self) -> dict[str, float]:
        """Every measure by its name."""
        bits = {} if self.bits_per_byte is None else {BITS_PER_BYTE: self.bits_per_byte}
        return {**bits, LOSS: self.loss, **self.measures}

    @property
    def cost(self) -> float:
        """What chooses the best checkpoint, the least first."""
        found = self.named()[self.criterion]
        return -found if self.rising else found

    def chosen(self) -> str:
        """The measure that the best checkpoint is chosen by, in words."""
        name = {BITS_PER_BYTE: "bits/byte"}.get(self.criterion, self.criterion)
        return f"{self.named()[self.criterion]:.4f} {name}"

    def line(self) -> str:
        """The measures in words, each with its unit."""
        bits = [] if self.bits_per_byte is None else [f"{self.bits_per_byte:.4f} bits/byte"]
        text = f"{self.tokens:,} {self.unit}s" + (f", {self.bytes:,} bytes" if self.bytes else "")
        return "  ".join([*bits, f"loss {self.loss:.4f} per {self.unit}" if not bits else
                          f"{self.loss:.4f} nats/{self.unit}",
                          *(f"{name} {value:.4f}" for name, value in self.measures.items()), f"({text})"])
