"""The model calls of an evaluation: windows without a state, or whole documents in chunks that pass on a state.

Both yield, piece by piece, the hidden vectors of every scored target; each target is scored exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.data import Batch, EvaluationWindows, TokenStream
from weft.decoding.mode import declares_length, device_of

AT_ONCE = 1024
"""Tokens up to which batches of windows are computed in one call: a small model takes longer to be called than to
compute a few of them."""


@dataclass(frozen=True)
class TargetPiece:
    """Scored targets, and the hidden vectors from which they are predicted.

    Attributes:
        h: the readout's input [1,N,...].
        targets: ids [1,N].
        places: where the targets stand in the stream, [N].
        bytes: the bytes of text that the targets represent.
        lost: nats for text that they do not tell; NaN if unknown.
    """

    h: Tensor
    targets: Tensor
    places: Int64[np.ndarray, " N"]
    bytes: int
    lost: float


def window_pieces(model: LanguageModel, windows: EvaluationWindows, *, fenced: bool,
                  chosen: frozenset[int]) -> Iterator[TargetPiece]:
    """The pieces of batches of windows; each window starts without a state.

    Args:
        model: a model in evaluation mode.
        windows: the windows of one stream.
        fenced: whether a token's context is limited to its own document.
        chosen: the indices of the batches to run.
    """
    batches = (batch for batch in map(windows.batch, sorted(chosen)) if batch.scored.any())
    # Where a document begins inside a row, the call needs a mask, and may be computed by another form than without.
    for _, alike in groupby(batches, lambda batch: bool(batch.begins[:, 1:].any())):
        while group := list(islice(alike, max(1, AT_ONCE // (windows.rows * windows.context)))):
            yield _window_piece(model, group, fenced)


def _window_piece(model: LanguageModel, batches: list[Batch], fenced: bool) -> TargetPiece:
    """The targets of several batches of windows, computed by one call."""
    device = device_of(model)
    inputs, targets, begins, scored, places = (np.concatenate([getattr(batch, name) for batch in batches]) for name
                                               in ("inputs", "targets", "begins", "scored", "places"))
    begins[:, 0] = False
    span = Span(begins=torch.from_numpy(begins).to(device) if fenced and begins.any() else None)
    h = model.hidden(torch.from_numpy(inputs).to(device), None, span).y
    return _piece(h, targets, scored, places[scored] + 1, sum(batch.scored_bytes for batch in batches),
                  sum(batch.lost for batch in batches))


@dataclass(frozen=True)
class Stretch:
    """Tokens ``first`` to ``last`` (exclusive) of a stream, which are run in order from a fresh state."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.last - self.first


def stretches(stream: TokenStream, *, fenced: bool) -> list[Stretch]:
    """The documents with a token to predict; if documents are not fenced, the whole stream is one."""
    end = len(stream) - 1
    if not fenced:
        return [Stretch(0, end)]
    places = np.flatnonzero(stream.begins).tolist()
    starts = places if places[:1] == [0] else [0, *places]
    documents: list[Stretch] = []
    for first, following in zip(starts, [*starts[1:], len(stream)], strict=True):
        last = following if stream.begins_scored and following < len(stream) else following - 1
        if last > first:
            documents.append(Stretch(first, last))
    return documents


def document_pieces(model: LanguageModel, stream: TokenStream, documents: list[Stretch], *, chunk: int,
                    rows: int) -> Iterator[TargetPiece]:
    """The pieces of whole documents: documents of similar length are run together, in chunks that pass on the state.

    Args:
        model: a model in evaluation mode.
        stream: the tokens.
        documents: the documents, from `stretches`.
        chunk: tokens of one call; it limits memory and does not change the results.
        rows: documents that are run together.
    """
    ordered = sorted(documents, key=lambda document: document.length)
    for first in range(0, len(ordered), rows):
        yield from _group_pieces(model, stream, ordered[first : first + rows], chunk)


def _group_pieces(model: LanguageModel, stream: TokenStream, group: list[Stretch], chunk: int) -> Iterator[TargetPiece]:
    device = device_of(model)
    lengths = np.array([document.length for document in group])
    longest, level = int(lengths.max()), bool((lengths == lengths[0]).all())
    horizon = torch.from_numpy(lengths).to(device) if declares_length(model) else None
    state = model.init_state(len(group), capacity=longest, device=device, horizon=horizon)
    starts = np.array([document.first for document in group])
    for done in range(0, longest, chunk):
        steps = np.arange(done, min(done + chunk, longest))
        real = steps[None] < lengths[:, None]
        places = np.where(real, starts[:, None] + steps[None], 0)
        count = None if level else torch.from_numpy(real.sum(1)).to(device)
        span = Span(count=count, fresh=done == 0, bound=int(steps[-1]) + 1, uniform=level)
        out = model.hidden(torch.from_numpy(stream.tokens[places].astype(np.int64)).to(device), state, span)
        assert out.state is not None, "a call with a state returns one"
        state = out.state
        scored = real & stream.scored(places + 1)
        size = int(stream.byte_lengths[places + 1][scored].astype(np.int64).sum())
        if scored.any():
            yield _piece(out.y, stream.tokens[places + 1].astype(np.int64), scored, places[scored] + 1, size,
                         stream.lost_at(places[scored] + 1))


def _piece(h: Tensor, targets: np.ndarray, counts: np.ndarray, places: np.ndarray, size: int,
           lost: float) -> TargetPiece:
    """The vectors and targets of the tokens at which ``counts`` [B,T] is true, which stand at ``places``."""
    chosen = torch.from_numpy(counts).to(h.device)
    return TargetPiece(h[chosen][None], torch.from_numpy(targets).to(h.device)[chosen][None], places, size, lost)
