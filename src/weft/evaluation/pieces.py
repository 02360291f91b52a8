"""What an evaluation runs: windows without a state, or whole documents in chunks that carry one.

Both give, piece by piece, what the readout reads for every target that counts; each target counts exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.data import EvaluationWindows, TokenStream
from weft.decoding.mode import declares_length, device_of


@dataclass(frozen=True)
class Piece:
    """Targets that count, with the vectors they are predicted from.

    Attributes:
        h: [1,N,...], for the readout.
        targets: ids [1,N].
        bytes: of text that the targets stand for.
    """

    h: Tensor
    targets: Tensor
    bytes: int


def window_pieces(model: LanguageModel, windows: EvaluationWindows, *, fenced: bool,
                  chosen: frozenset[int]) -> Iterator[Piece]:
    """Batches of windows, each window from no state.

    Args:
        model: in evaluation mode.
        windows: of one stream.
        fenced: tokens see those of their own document only.
        chosen: which batches.
    """
    device = device_of(model)
    for batch in (batch for index, batch in enumerate(windows) if index in chosen and batch.scored.any()):
        begins = batch.begins.copy()
        begins[:, 0] = False
        span = Span(begins=torch.from_numpy(begins).to(device) if fenced and begins.any() else None)
        h = model.hidden(torch.from_numpy(batch.inputs).to(device), None, span).y
        yield _piece(h, batch.targets, batch.scored, batch.scored_bytes)


@dataclass(frozen=True)
class Stretch:
    """Inputs ``first`` to ``last`` (exclusive) of a stream, run from an empty state to the end."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """Inputs, in tokens."""
        return self.last - self.first


def stretches(stream: TokenStream, *, fenced: bool) -> list[Stretch]:
    """The documents that have something to predict; without fences the whole stream is one."""
    end = len(stream) - 1
    if not fenced:
        return [Stretch(0, end)]
    places = np.flatnonzero(stream.begins).tolist()
    starts = places if places[:1] == [0] else [0, *places]
    found: list[Stretch] = []
    for first, following in zip(starts, [*starts[1:], len(stream)], strict=True):
        last = following if stream.begins_scored and following < len(stream) else following - 1
        if last > first:
            found.append(Stretch(first, last))
    return found


def document_pieces(model: LanguageModel, stream: TokenStream, documents: list[Stretch], *, chunk: int,
                    rows: int) -> Iterator[Piece]:
    """Documents of similar length together, in chunks of ``chunk`` tokens that carry the state.

    Args:
        model: in evaluation mode.
        stream: the tokens.
        documents: from `stretches`.
        chunk: tokens that are run at once; it bounds memory and does not change the results.
        rows: documents that are run together.
    """
    ordered = sorted(documents, key=lambda document: document.length)
    for first in range(0, len(ordered), rows):
        yield from _group_pieces(model, stream, ordered[first : first + rows], chunk)


def _group_pieces(model: LanguageModel, stream: TokenStream, group: list[Stretch], chunk: int) -> Iterator[Piece]:
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
        assert out.state is not None, "a call with a state gives one back"
        state = out.state
        scored = real & stream.scored(places + 1)
        size = int(stream.byte_lengths[places + 1][scored].astype(np.int64).sum())
        if scored.any():
            yield _piece(out.y, stream.tokens[places + 1].astype(np.int64), scored, size)


def _piece(h: Tensor, targets: np.ndarray, counts: np.ndarray, size: int) -> Piece:
    """The vectors and targets where ``counts`` [B,T] is true."""
    chosen = torch.from_numpy(counts).to(h.device)
    return Piece(h[chosen][None], torch.from_numpy(targets).to(h.device)[chosen][None], size)
