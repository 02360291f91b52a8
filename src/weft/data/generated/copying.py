"""Selective copying: repeat the tokens that are no noise, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int64

from weft.data.generated.draws import Draws
from weft.data.generated.generator import AnsweredRows, SymbolGenerator

NOISE = 0


@final
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
