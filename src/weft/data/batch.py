"""One batch of running text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int64

from weft.data.stream import TokenStream


@dataclass(frozen=True, eq=False)
class Batch:
    """B rows of T tokens, each with the token that follows it.

    Attributes:
        inputs: token ids.
        targets: the next token of each input.
        begins: inputs at which a document begins.
        scored: targets that count in a loss.
        target_bytes: UTF-8 bytes of text that each target represents. Bits per byte is the summed negative
            log-likelihood of the scored targets in nats, divided by ln 2 and by the sum of their bytes.
        fresh: whether rows start without a state carried from the batch before.
        count: tokens of each row; the rest is padding. None: all T.
        places: position in the stream of each input; 0 for padding. None: unknown.
        epoch: of each row, from 0: the pass over the stream that it belongs to. None: unknown.
        source: of each row of a mixture, the number of its source. None: there is one text alone.
        target_lost: nats that each target adds to bits per byte for text that it does not tell, see
            `weft.data.stream.TokenStream`.
    """

    inputs: Int64[np.ndarray, "B T"]
    targets: Int64[np.ndarray, "B T"]
    begins: Bool[np.ndarray, "B T"]
    scored: Bool[np.ndarray, "B T"]
    target_bytes: Int64[np.ndarray, "B T"]
    fresh: bool = True
    count: Int64[np.ndarray, " B"] | None = None
    places: Int64[np.ndarray, "B T"] | None = None
    epoch: Int64[np.ndarray, " B"] | None = None
    source: Int64[np.ndarray, " B"] | None = None
    target_lost: Float32[np.ndarray, "B T"] | None = None

    @property
    def tokens_of_rows(self) -> Int64[np.ndarray, " B"]:
        """Inputs of each row without padding."""
        rows, length = self.inputs.shape
        return np.full(rows, length, dtype=np.int64) if self.count is None else self.count

    @property
    def scored_tokens(self) -> int:
        """Number of scored targets."""
        return int(self.scored.sum())

    @property
    def scored_bytes(self) -> int:
        """Bytes of text that the scored targets represent."""
        return int(self.target_bytes[self.scored].sum())

    @property
    def lost(self) -> float:
        """Nats for text that the scored tokens do not tell; NaN if unknown."""
        return 0.0 if self.target_lost is None else float(self.target_lost[self.scored].sum(dtype=np.float64))


def cut(stream: TokenStream, starts: Int64[np.ndarray, " B"], length: int, *,
        score_from: Int64[np.ndarray, " B"] | None = None, fresh: bool = True,
        epoch: Int64[np.ndarray, " B"] | None = None) -> Batch:
    """The windows of ``length`` inputs that start at ``starts``.

    Args:
        stream: the tokens.
        starts: position of each row's first input.
        length: T; the last target is ``length`` tokens after the first input.
        score_from: position in the stream of each row's first scored target; by default all are scored.
        fresh: see `Batch`.
        epoch: see `Batch`.
    """
    places = starts[:, None] + np.arange(length + 1)
    tokens, begins = stream.tokens[places].astype(np.int64), stream.begins[places]
    scored = stream.scored(places[:, 1:], begins[:, 1:])
    if score_from is not None:
        scored &= places[:, 1:] >= score_from[:, None]
    return Batch(inputs=np.ascontiguousarray(tokens[:, :-1]), targets=np.ascontiguousarray(tokens[:, 1:]),
                 begins=np.ascontiguousarray(begins[:, :-1]), scored=scored,
                 target_bytes=stream.byte_lengths[places[:, 1:]].astype(np.int64), fresh=fresh, places=places[:, :-1],
                 epoch=epoch, target_lost=None if stream.lost is None else stream.lost[places[:, 1:]])
