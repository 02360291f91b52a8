"""One batch of running text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Int64

from weft.data.stream import TokenStream


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """B rows of T tokens, each with the token that follows it.

    Attributes:
        inputs: token ids.
        targets: the next token of each input.
        begins: inputs at which a document begins.
        scored: targets that count in a loss.
        target_bytes: UTF-8 bytes of text that each target stands for. The sum over scored targets divides their summed
            negative log-likelihood (in nats, over ln 2) to give bits per byte.
        fresh: whether rows start without a state carried from the batch before.
        count: tokens of each row; what stands behind them is padding, which is no token. None: all T.
        places: where in its stream each input stands; 0 for padding. None: not known.
        epoch: of each row, from 0: which pass over the stream it belongs to. None: not known.
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

    @property
    def scored_tokens(self) -> int:
        """Number of targets that count."""
        return int(self.scored.sum())

    @property
    def scored_bytes(self) -> int:
        """Bytes of text that the targets that count stand for."""
        return int(self.target_bytes[self.scored].sum())


def cut(
    stream: TokenStream,
    starts: Int64[np.ndarray, " B"],
    length: int,
    *,
    score_from: Int64[np.ndarray, " B"] | None = None,
    fresh: bool = True,
    epoch: Int64[np.ndarray, " B"] | None = None,
) -> Batch:
    """The windows of ``length`` inputs that start at ``starts``.

    Args:
        stream: the tokens.
        starts: position of each row's first input.
        length: T; the last target lies ``length`` after the first input.
        score_from: position in the stream of each row's first target that counts; all count by default.
        fresh: see `Batch`.
        epoch: see `Batch`.
    """
    places = starts[:, None] + np.arange(length + 1)
    tokens, begins = stream.tokens[places].astype(np.int64), stream.begins[places]
    scored = stream.scored(places[:, 1:])
    if score_from is not None:
        scored &= places[:, 1:] >= score_from[:, None]
    return Batch(
        inputs=np.ascontiguousarray(tokens[:, :-1]),
        targets=np.ascontiguousarray(tokens[:, 1:]),
        begins=np.ascontiguousarray(begins[:, :-1]),
        scored=scored,
        target_bytes=stream.byte_lengths[places[:, 1:]].astype(np.int64),
        fresh=fresh,
        places=places[:, :-1],
        epoch=epoch,
    )
