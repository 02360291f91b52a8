"""Induction heads: what followed the trigger before?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int64

from weft.data.generated.draws import Draws
from weft.data.generated.generator import AnsweredRows, SymbolGenerator


@final
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
