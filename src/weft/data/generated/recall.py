"""Multi-query associative recall: pairs of a key and a value, and later the keys again.

Selective copying: repeat the tokens that are no noise, in order.

Induction heads: what followed the trigger before?
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from weft.data.generated.generator import AnsweredRows, Draws, SymbolGenerator


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


NOISE = 0


@dataclass(frozen=True)
class SelectiveCopying(SymbolGenerator):
    """Data tokens at random places among noise, then as many markers, at which they are to be repeated in order (Gu and
    Dao 2023, section 3.1 and appendix E.1; of their vocabulary of 16, one id is noise and one the marker).

        noise noise 3 noise 7 noise noise 3 noise  marker marker marker
                                                   -> 3   -> 7   -> 3

    Ids: 0 is noise, 1 .. V-2 are data, V-1 is the marker.

    Attributes:
        length: tokens of a row, markers included.
        tokens: M, data tokens of a row, drawn with repetition; their places are M different ones before the markers.
        symbols: V, ids of the vocabulary.
    """

    tokens: int

    @property
    def answers(self) -> int:
        return self.tokens

    @property
    def chance(self) -> float:
        return 1 / (self.symbols - 2)

    def describe(self) -> str:
        return f"selective copying of {self.tokens} tokens, {self.symbols} ids, rows of {self.length:,}"

    def rows(self, seed: int, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        draws, size, before = Draws(seed, index), len(index), self.length - self.tokens
        data = 1 + draws.below(self.symbols - 2, self.tokens)
        chosen = np.sort(draws.different(before, self.tokens), axis=-1)
        ids = np.full((size, self.length), NOISE, dtype=np.int64)
        np.put_along_axis(ids, chosen, data, axis=-1)
        ids[:, before:] = self.symbols - 1
        places = np.broadcast_to(np.arange(before, self.length), (size, self.tokens))
        return AnsweredRows(ids, None, places, data)


@dataclass(frozen=True)
class InductionHeads(SymbolGenerator):
    """Random tokens among which a trigger stands once; at the end it stands again, and the token that followed it is to
    be predicted (Olsson et al. 2022; in the form of Gu and Dao 2023, section 4.1.2 and appendix E.1).

        4 1 trigger 6 2 2 5 1 trigger
                              -> 6

    Ids: 0 .. V-2 are drawn uniformly with repetition, V-1 is the trigger.

    Attributes:
        length: tokens of a row; its last is the second trigger. The first stands anywhere before, with a token between.
        symbols: V, ids of the vocabulary.
    """

    @property
    def answers(self) -> int:
        return 1

    @property
    def chance(self) -> float:
        return 1 / (self.symbols - 1)

    def describe(self) -> str:
        return f"induction heads, {self.symbols} ids, rows of {self.length:,}"

    def rows(self, seed: int, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        draws, size = Draws(seed, index), len(index)
        place = draws.below(self.length - 2, 1)
        ids = draws.below(self.symbols - 1, self.length)
        answers = np.take_along_axis(ids, place + 1, axis=-1)
        np.put_along_axis(ids, place, self.symbols - 1, axis=-1)
        ids[:, -1] = self.symbols - 1
        return AnsweredRows(ids, None, np.full((size, 1), self.length - 1), answers)
