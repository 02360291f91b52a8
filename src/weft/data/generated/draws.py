"""Random numbers of generated examples, each a pure function of seed, example and place."""

from __future__ import annotations

from typing import final

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from weft.data.permutation import hashed

PLACES = 24
"""Bits of a counter that number the draws of one example; those above number the examples."""
MOST_EXAMPLES = 1 << 39
"""Examples that a seed has: their numbers and `PLACES` fit into 63 bits."""


@final
class Draws:
    """Random numbers for several examples at once; a row's numbers do not depend on the rows beside it.

    Draw n of an example is SplitMix64 at a counter that numbers examples and draws (`weft.data.permutation.hashed`),
    so that it depends on no earlier example and on no version of a library.

    Args:
        seed: any integer.
        index: of the examples, each from 0 and below `MOST_EXAMPLES`.
    """

    def __init__(self, seed: int, index: Int64[np.ndarray, " B"]) -> None:
        self._seed, self._first = seed, index.astype(np.int64) << PLACES
        self._used = 0

    def bits(self, count: int) -> UInt64[np.ndarray, "B {count}"]:
        """The next ``count`` draws of each example, 64 bits each."""
        assert self._used + count <= 1 << PLACES, "an example has 2^24 draws"
        counter = self._first[:, None] + np.arange(self._used, self._used + count)
        self._used += count
        return hashed(self._seed, counter.reshape(-1)).reshape(counter.shape)

    def uniform(self, count: int) -> Float64[np.ndarray, "B {count}"]:
        """Numbers in [0,1), multiples of 2^-53."""
        return (self.bits(count) >> np.uint64(11)) * 2.0**-53

    def below(self, limit: int, count: int) -> Int64[np.ndarray, "B {count}"]:
        """Whole numbers from 0 to ``limit`` - 1; each is drawn with probability 1 / limit, to within 2^-32."""
        assert 0 < limit <= 1 << 32, "larger limits would need more bits"
        half = np.uint64(32)
        return (((self.bits(count) >> half) * np.uint64(limit)) >> half).astype(np.int64)

    def different(self, size: int, count: int, weights: Float64[np.ndarray, " {size}"] | None = None
                  ) -> Int64[np.ndarray, "B {count}"]:
        """``count`` different numbers below ``size``, drawn one after another without putting back: each draw takes one
        of those left with a probability in proportion to its weight (None: equal ones).

        They are those with the smallest E / weight, E exponentially distributed (Efraimidis and Spirakis 2006).
        """
        assert count <= size, "no more than there are"
        keys = -np.log1p(-self.uniform(size))
        if weights is not None:
            keys = keys / weights
        smallest = np.argpartition(keys, count - 1, axis=-1)[:, :count]
        order = np.argsort(np.take_along_axis(keys, smallest, -1), axis=-1, kind="stable")
        found: np.ndarray = np.take_along_axis(smallest, order, -1).astype(np.int64)
        return found
