"""Preference pairs: two answers to one prompt, the better in one row and the worse in the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.errors import DataError
from weft.data.batch import Batch
from weft.data.duplicates import Repeated
from weft.data.packed import filled
from weft.data.packing import documents_in, scored_in
from weft.data.sequences import WIDTHS
from weft.data.stream import TokenStream


@dataclass(frozen=True, eq=False)
class PreferencePairs:
    """Preference pairs as tokens.

    Attributes:
        stream: of whose documents the even ones, from 0, are the better answers with their prompts, and each odd one
            is the worse answer to the prompt before it. Scored are the answers alone.
        starts: of each answer kept, the position in the stream of its first token, pairs together: 2P of them.
        scored: scored tokens of each.
        longer: how many of these were longer than the context, and so cut or left out.
        reference: the log-probability of each answer under the reference model, in nats; None: not computed yet.
    """

    stream: TokenStream
    starts: Int64[np.ndarray, " A"]
    lengths: Int64[np.ndarray, " A"]
    scored: Int64[np.ndarray, " A"]
    pairs: int
    longer: int
    reference: Float64[np.ndarray, " A"] | None = None

    @property
    def repeated(self) -> Repeated | None:
        """The number of held-out pairs that are also trained on; None: unknown."""
        return self.stream.repeated

    def __len__(self) -> int:
        """Tokens."""
        return int(self.lengths.sum() + len(self.lengths))

    @property
    def size(self) -> int:
        """P, the pairs that are kept."""
        return len(self.starts) // 2


def kept_pairs(stream: TokenStream, context: int, long: Literal["cut", "drop"]) -> PreferencePairs:
    """The pairs of a stream of which both answers have scored tokens within the context. Raises `DataError`: none
    has."""
    starts, inputs = documents_in(stream)
    longer = (inputs > context).reshape(-1, 2).any(1)
    lengths = np.minimum(inputs, context)
    scored = scored_in(stream, starts, lengths)
    kept = np.asarray((scored > 0).reshape(-1, 2).all(1) & (~longer | (long == "cut")))
    if not kept.any():
        raise DataError(f"no pair is left: {int(longer.sum()):,} of {len(kept):,} are longer than the context of "
                        f"{context} tokens.", where=stream.corpus, remedy="Raise training.context.")
    both = np.repeat(kept, 2)
    return PreferencePairs(stream, starts[both], lengths[both], scored[both], len(kept), int(longer.sum()))


def width_of(examples: PreferencePairs, chosen: Int64[np.ndarray, " B"]) -> int:
    """Inputs of the rows of a batch of these pairs, padding included."""
    longest, most = (int(lengths.max()) for lengths in (examples.lengths[rows_of(chosen)], examples.lengths))
    return -(-most * -(-WIDTHS * longest // most) // WIDTHS)


def laid_out(examples: PreferencePairs, chosen: Int64[np.ndarray, " B"], width: int) -> Batch:
    """The pairs ``chosen`` as rows of ``width`` inputs, the better answer of each before the worse."""
    rows = rows_of(chosen)
    return filled(examples.stream, np.ones(len(rows), dtype=np.int64), examples.starts[rows], examples.lengths[rows],
                  width)


def rows_of(chosen: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " R"]:
    """The places of the answers of these pairs."""
    rows: np.ndarray = (2 * chosen[:, None] + np.arange(2)).reshape(-1)
    return rows
