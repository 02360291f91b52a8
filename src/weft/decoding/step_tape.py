"""A tape of a step, and the tensors of the state that each replay passes on to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from weft.core.model import ModelState
from weft.core.rows import cut_out, written
from weft.core.state import FactField, TensorField, leaves
from weft.decoding.recording import Recording
from weft.decoding.tape import tape
from weft.gpu.graphs import GraphedStep, graph_on, same_place, tensors_of


@final
class StepTape:
    """A tape, and the state after its last step.

    Args:
        tokens: the ids that it was given.
        moving: the flags that it was given.
        before: the state that it consumed.
        after: the state that it returned.
        room: the most tokens a row may have after a step of the tape.

    Attributes:
        step: the tape itself, on a GPU as one graph.
    """

    def __init__(self, recording: Recording, tokens: Tensor, moving: Tensor | None, before: ModelState,
                 after: ModelState, logits: Tensor, room: int) -> None:
        self.room = room
        self._all_move, self._after = moving is None, after
        self._given_out: ModelState | None = None
        self._fields = [spec for _, spec in after.tensors().values()]
        pairs = list(zip(tensors_of(before), tensors_of(after), strict=True))
        self._kept = [new for old, new in pairs if same_place(old, new)]
        self._carried = [not same_place(old, new) for old, new in pairs]
        changed = [pair for pair, carried in zip(pairs, self._carried, strict=True) if carried]
        self._now = [new for _, new in changed]
        given = [tokens] if moving is None else [tokens, moving]
        step = tape(recording, [*given, *(old for old, _ in changed)], [logits, *self._now], self._kept)
        self._sources = step.sources
        read = any(call.expected is not None for call in recording.calls)
        self.step = GraphedStep(step, len(given), graph_on(tokens.device), "it reads a truth value" if read else None)

    def serves(self, moving: Tensor | None, bound: int) -> bool:
        """Return whether the tape can replay such a step."""
        return bound <= self.room and self._all_move == (moving is None)

    def play(self, tokens: Tensor, moving: Tensor | None) -> Tensor:
        """Replay one step, and return its logits."""
        given = (tokens,) if moving is None else (tokens, moving)
        logits, *self._now = self.step(*given, *self._now)
        self._given_out = None
        return logits

    # Rows are changed in the tensors themselves: building a `ModelState` before and after the change would take a third
    # of a step's time. If a state was returned since the last step, it must be built after all, since the state that
    # was returned has to count as consumed, and its later use be refused.

    def retire(self, rows: Sequence[int]) -> bool:
        """Reset rows as `weft.core.rows.retire` does; returns False if the caller must use that function instead."""
        if self._given_out is not None:
            return False
        places = torch.tensor(list(rows))
        for tensor, field in zip(self._tensors(), self._fields, strict=True):
            if field.restarts:
                tensor.index_fill_(0, places.to(tensor.device), 0)
        return True

    def admit(self, rows: Sequence[int], other: ModelState) -> bool:
        """Write rows as `weft.core.rows.admit` does; returns False if the caller must use that function instead, which
        raises the error if the rows do not fit."""
        own, new = self._tensors(), tensors_of(other)
        if self._given_out is not None or not all(_fits(*each) for each in zip(new, own, self._fields, strict=True)):
            return False
        places = torch.tensor(list(rows))
        for tensor, lines, field in zip(own, new, self._fields, strict=True):
            written(tensor, places, lines, field)
        return True

    def takes(self, state: ModelState) -> bool:
        """Return whether `go_on_from` can continue with a state: it has as many rows, the same fields and facts, and no
        more slots than the tape's own."""
        own, new = self._tensors(), tensors_of(state)
        return (_facts(state) == _facts(self._after) and len(own) == len(new)
                and all(_fits(*each) and each[0].shape[:1] == each[1].shape[:1] and each[0].device == each[1].device
                        for each in zip(new, own, self._fields, strict=True)))

    def go_on_from(self, state: ModelState) -> None:
        """Continue with the rows of another state, which are copied."""
        # What a step returns may be the same tensor every time, so tensors that it does not write to are made anew.
        self._now = [torch.empty_like(tensor) for tensor in self._now]
        rows = torch.arange(state.batch())
        for tensor, lines, field in zip(self._tensors(), tensors_of(state), self._fields, strict=True):
            written(tensor, rows, lines, field)
        self._given_out = None

    def is_whole(self) -> bool:
        """Return whether what the tape took for constant is what it was (`weft.decoding.tape_sources`)."""
        return self._sources.unchanged()

    def nbytes(self) -> int:
        """Bytes of the state's tensors."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def goes_on_with(self, state: ModelState) -> bool:
        """Continue with a state that has the same tensor objects, with other rows in them; returns False if it has
        others."""
        if any(new is not old for old, new in zip(self._tensors(), tensors_of(state), strict=True)):
            return False
        self._after = self._given_out = state
        return True

    def state(self) -> ModelState:
        """Return the state after the last step."""
        if self._given_out is None:
            if self.step.obstacle is None:  # what lies in a graph's buffers is overwritten by its next replay
                self._now = [tensor.clone() for tensor in self._now]
            now = iter(self._tensors())
            self._given_out = self._after.map(lambda _tensor, _: next(now))
        return self._given_out

    def copy_of(self, row: int) -> ModelState:
        """Return a copy of the state of one row. It counts as no state that was returned."""
        given_out = self._given_out
        copied, self._given_out = cut_out(self.state(), row), given_out
        return copied

    def _tensors(self) -> list[Tensor]:
        """Return the tensors of the state after the last step."""
        now, kept = iter(self._now), iter(self._kept)
        return [next(now) if carried else next(kept) for carried in self._carried]


def _facts(state: ModelState) -> list[tuple[str, object]]:
    """Return the paths of the state's fields, with the values of its facts, except the number of slots."""
    return [(path, value if isinstance(spec, FactField) and not spec.room else None)
            for path, value, spec in leaves(state)]


def _fits(new: Tensor, own: Tensor, field: TensorField) -> bool:
    """Return whether rows of ``new`` can be copied into ``own``: same dtype and sizes, and no more slots."""
    return new.dtype == own.dtype and new.dim() == own.dim() and all(
        given == size or (dim == field.grows and given < size)
        for dim, (given, size) in enumerate(zip(new.shape, own.shape, strict=True)) if dim)
