"""Batches of preference pairs: two answers to one prompt, the better in one row and the worse in the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.errors import DataError
from weft.data.batch import Batch
from weft.data.duplicates import Repeated
from weft.data.packed import filled
from weft.data.packing import documents_in, scored_in
from weft.data.sequences import WIDTHS, RowOrder, share_of
from weft.data.stream import TokenStream


@final
@dataclass(frozen=True, eq=False)
class PreferencePairs:
    """Preference pairs as tokens.

    Attributes:
        stream: of whose documents the even ones, from 0, are the better answers with their prompts, and each odd one
            is the worse answer to the prompt before it. Scored are the answers alone.
        starts: of each answer kept, the position in the stream of its first token, pairs together: 2P of them.
        lengths: inputs of each.
        scored: scored tokens of each.
        pairs: how many were read.
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


@final
@dataclass(frozen=True, eq=False)
class PreferenceBatch:
    """B pairs as 2B rows, the better answer before the worse.

    Attributes:
        rows: the tokens.
        reference: see `PreferencePairs`, of each row; None: not known.
    """

    rows: Batch
    reference: Float64[np.ndarray, " R"] | None


def kept_pairs(stream: TokenStream, context: int, long: Literal["cut", "drop"]) -> PreferencePairs:
    """The pairs of a stream of which both answers have scored tokens within the context.

    Raises:
        DataError: none has.
    """
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


@final
class PreferenceBatches:
    """Batches of pairs in shuffled order, as wide as their longest row, rounded up to quarters of the longest of all.

    Args:
        examples: the pairs.
        pairs: of a batch.
        seed: any integer.
        reshuffle: every epoch has its own order; False: all have the order of the first.
    """

    def __init__(self, examples: PreferencePairs, *, pairs: int, seed: int, reshuffle: bool) -> None:
        self.examples = examples
        self._order = RowOrder(examples.size, rows=pairs, seed=seed, reshuffle=reshuffle, where=examples.stream.corpus)

    @property
    def rows(self) -> float:
        """Rows of a batch: two for each pair."""
        return 2 * self._order.rows

    @property
    def tokens_per_batch(self) -> float:
        """Inputs of a batch without padding; the mean over an epoch."""
        return self.rows * float(self.examples.lengths.mean())

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> PreferenceBatch:
        """The batch of that step, or one rank's pairs of it, padded to the width of the whole batch."""
        chosen = self._order.of(step)
        return laid_out(self.examples, chosen[share_of(len(chosen), rank, world)], width_of(self.examples, chosen))


def width_of(examples: PreferencePairs, chosen: Int64[np.ndarray, " B"]) -> int:
    """Inputs of the rows of a batch of these pairs, padding included."""
    longest, most = (int(lengths.max()) for lengths in (examples.lengths[_rows(chosen)], examples.lengths))
    return -(-most * -(-WIDTHS * longest // most) // WIDTHS)


def laid_out(examples: PreferencePairs, chosen: Int64[np.ndarray, " B"], width: int) -> PreferenceBatch:
    """The pairs ``chosen`` as rows of ``width`` inputs."""
    rows = _rows(chosen)
    reference = None if examples.reference is None else examples.reference[rows]
    batch = filled(examples.stream, np.ones(len(rows), dtype=np.int64), examples.starts[rows], examples.lengths[rows],
                   width)
    return PreferenceBatch(batch, reference)


def _rows(chosen: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " R"]:
    rows: np.ndarray = (2 * chosen[:, None] + np.arange(2)).reshape(-1)
    return rows
