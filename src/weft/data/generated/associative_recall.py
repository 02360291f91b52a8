"""Multi-query associative recall: pairs of a key and a value, and later the keys again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int64

from weft.data.generated.draws import Draws
from weft.data.generated.generator import AnsweredRows, SymbolGenerator


@final
@dataclass(frozen=True)
class AssociativeRecall(SymbolGenerator):
    """Pairs of a key and a value; then each key once more, at which its value is to be predicted (Arora et al. 2023,
    "Zoology", section 3.2 and appendix C.1, as their code makes it).

        k1 v1 k2 v2 k3 v3   .  . k2  .  .  . k1  . k3  .
                                 -> v2       -> v1 -> v3

    All keys of a row are different, and so are its values. Ids: 0 is the blank, 1 .. V//2 - 1 are keys, V//2 .. V-1
    values. With S = (length - 2 pairs) / 2 slots of two tokens behind the pairs, queries take different slots, slot s
    (from 1) with a probability in proportion to s^(power - 1): near 0 a power law of the gap, at 1 all alike. All else
    behind the pairs is filled with random ids, as in that code, or is blank.

    Attributes:
        length: tokens of a row, even.
        pairs: of a key and a value.
        symbols: V, ids of the vocabulary.
        power: the exponent of the power law.
        random_filler: whether the fill is random.
    """

    pairs: int
    power: float
    random_filler: bool

    @property
    def answers(self) -> int:
        return self.pairs

    @property
    def chance(self) -> float:
        return 1 / (self.symbols - self.symbols // 2)

    def describe(self) -> str:
        return (f"associative recall of {self.pairs} pairs, {self.symbols:,} ids, rows of {self.length:,}, "
                f"power {self.power:g}")

    def rows(self, seed: int, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        draws, size, behind = Draws(seed, index), len(index), 2 * self.pairs
        half, slots = self.symbols // 2, (self.length - behind) // 2
        keys = 1 + draws.different(half - 1, self.pairs)
        values = half + draws.different(self.symbols - half, self.pairs)
        law = np.arange(1, slots + 1, dtype=np.float64) ** (self.power - 1)
        places = behind + 2 * draws.different(slots, self.pairs, law)
        ids = np.zeros((size, self.length), dtype=np.int64)
        if self.random_filler:
            ids[:, behind:] = draws.below(self.symbols, self.length - behind)
        ids[:, 0:behind:2], ids[:, 1:behind:2] = keys, values
        np.put_along_axis(ids, places, keys, axis=-1)
        return AnsweredRows(ids, None, places, values)
