"""The steps of a batch, one token in every row: taken as they are at first, and by tapes once they go on.

A tape is a step's tensor operations without the Python around them (`weft.decoding.tape`). Shapes and facts must be
the same at each of its steps, so keys are read up to a bound that stands still for a while, and masks hide those that
do not exist yet. Every tape is played once beside an ordinary step before it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from weft.core.model import ModelState
from weft.core.rows import admit, retire, written
from weft.core.span import Span
from weft.core.state import TensorField
from weft.decoding.recording import Recorder, Recording
from weft.decoding.tape import ChangedError, tape

Work = Callable[[Tensor, ModelState, Span], tuple[Tensor, ModelState]]
"""Logits [B,V] after one more token [B] in every row, and the state; the state that is given is consumed."""

PATIENCE = 3
"""Ordinary steps before the first tape: what is short does not pay for one."""
WORTH = 24
"""Steps that a tape must serve to be worth its making."""
BLOCK = 256
"""Keys that a tape reads at most before they exist, or an eighth of those that do where that is more; and a quarter
more of all if it then serves to the end."""


@final
class Steps:
    """Takes steps and keeps the state.

    Args:
        work: the ordinary step.
        state: before the first step.
        capacity: tokens that the state has room for.
        plain: take every step as it is.
        hooks: what is called with the model's parts (`hooks_of`); while there is any, steps are taken as they are.
    """

    def __init__(self, work: Work, state: ModelState, capacity: int, *, plain: bool,
                 hooks: Sequence[Mapping[int, Any]] = ()) -> None:
        self._work, self._state, self._capacity, self._plain = work, state, capacity, plain
        self._hooks = hooks
        self._tape: _Tape | None = None
        self._trusted, self._wait = False, PATIENCE

    @property
    def state(self) -> ModelState:
        """After the last step."""
        return self._state if self._tape is None else self._tape.state()

    @property
    def by_tape(self) -> bool:
        """A tape that has been checked takes the steps."""
        return self._tape is not None and self._trusted

    def go_on_from(self, state: ModelState) -> None:
        """Another state, with room for as many tokens."""
        self._state, self._tape, self._wait = state, None, PATIENCE

    def admit(self, rows: Sequence[int], other: ModelState) -> None:
        """Put the rows of another state in the places ``rows``; a tape goes on."""
        if not (self._tape is not None and self._tape.admit(rows, other)):
            self._go_on_with(admit(self.state, rows, other))

    def retire(self, rows: Sequence[int]) -> None:
        """Let ``rows`` begin again; a tape goes on."""
        if rows and not (self._tape is not None and self._tape.retire(rows)):
            self._go_on_with(retire(self.state, rows))

    def _go_on_with(self, state: ModelState) -> None:
        """The state whose rows were changed in place."""
        if self._tape is None or not self._tape.goes_on_with(state):
            self._state, self._tape = state, None

    def take(self, tokens: Tensor, moving: Tensor | None, bound: int, *, uniform: bool) -> Tensor:
        """Logits after one more token in every row, or in those that move.

        Args:
            tokens: [B].
            moving: [B]; None: all.
            bound: tokens that no row exceeds with this one.
            uniform: every row has exactly so many.
        """
        if any(self._hooks):
            self.go_on_from(self.state)
            return self._ordinary(tokens, Span(count=_counts(moving), bound=bound, uniform=uniform))
        if self._tape is not None and self._tape.serves(moving, bound):
            return self._play(self._tape, tokens, moving)
        self._state, self._tape = self.state, None
        room = _room(bound, self._capacity)
        if not (self._plain or self._wait or room - bound < WORTH):
            return self._record(tokens, moving, room)
        self._wait = max(0, self._wait - 1)
        return self._ordinary(tokens, Span(count=_counts(moving), bound=bound, uniform=uniform))

    def _ordinary(self, tokens: Tensor, span: Span) -> Tensor:
        logits, self._state = self._work(tokens, self._state, span)
        return logits

    def _record(self, tokens: Tensor, moving: Tensor | None, room: int) -> Tensor:
        """An ordinary step, written down."""
        before = self._state
        with Recorder() as recorder:
            logits = self._ordinary(tokens, Span(count=_counts(moving), bound=room))
        if recorder.obstacle is None and _alike(before, self._state):
            self._tape = _Tape(recorder.recording, tokens, moving, before, self._state, logits, room)
            self._trusted = False
        else:
            self._plain = True
        return logits

    def _play(self, tape: _Tape, tokens: Tensor, moving: Tensor | None) -> Tensor:
        """A step by tape; its first one beside an ordinary step, which decides."""
        beside = None if self._trusted else tape.state().clone()
        try:
            logits = tape.play(tokens, moving)
        except ChangedError:  # the ordinary step says what is wrong
            self._state, self._tape, self._plain = tape.state() if beside is None else beside, None, True
            return self._ordinary(tokens, Span(count=_counts(moving), bound=tape.room))
        if beside is None:
            return logits
        wanted, after = self._work(tokens, beside, Span(count=_counts(moving), bound=tape.room))
        self._trusted = torch.equal(logits, wanted) and _equal(tape.state(), after)
        if not self._trusted:
            self._state, self._tape, self._plain = after, None, True
        return wanted


@final
class _Tape:
    """A tape, and the tensors that go from one of its steps to the next."""

    def __init__(self, recording: Recording, tokens: Tensor, moving: Tensor | None, before: ModelState,
                 after: ModelState, logits: Tensor, room: int) -> None:
        self.room = room
        self._all_move, self._after = moving is None, after
        self._given_out: ModelState | None = None
        self._fields = [spec for _, spec in after.tensors().values()]
        pairs = list(zip(_tensors(before), _tensors(after), strict=True))
        self._kept = [new for old, new in pairs if _same(old, new)]
        self._carried = [not _same(old, new) for old, new in pairs]
        old, self._now = (self._of_carried(side) for side in zip(*pairs, strict=True))
        given = [tokens] if moving is None else [tokens, moving]
        self._step = tape(recording, [*given, *old], [logits, *self._now], self._kept)

    def serves(self, moving: Tensor | None, bound: int) -> bool:
        """Whether a step is one of these."""
        return bound <= self.room and self._all_move == (moving is None)

    def play(self, tokens: Tensor, moving: Tensor | None) -> Tensor:
        """Logits after one more step."""
        given = (tokens,) if moving is None else (tokens, moving)
        logits, *self._now = self._step(*given, *self._now)
        self._given_out = None
        return logits

    # Rows change in the tensors themselves. Making a state of them first, and one of the result, takes as long as a
    # third of a step. Where a state was given out since the last step that has to be: using it afterwards is refused.

    def retire(self, rows: Sequence[int]) -> bool:
        """What `weft.core.rows.retire` does; False where it is left to that."""
        if self._given_out is not None:
            return False
        places = torch.tensor(list(rows))
        for tensor, field in zip(self._tensors(), self._fields, strict=True):
            if field.restarts:
                tensor.index_fill_(0, places.to(tensor.device), 0)
        return True

    def admit(self, rows: Sequence[int], other: ModelState) -> bool:
        """What `weft.core.rows.admit` does; False where it is left to that, which also says what does not fit."""
        own, new = self._tensors(), _tensors(other)
        if self._given_out is not None or not all(
                _fits(*each) for each in zip(new, own, self._fields, strict=True)):
            return False
        places = torch.tensor(list(rows))
        for tensor, lines, field in zip(own, new, self._fields, strict=True):
            written(tensor, places, lines, field)
        return True

    def goes_on_with(self, state: ModelState) -> bool:
        """Go on with a state whose tensors are those of this one, other rows in them; False where they are not."""
        if any(new is not old for old, new in zip(self._tensors(), _tensors(state), strict=True)):
            return False
        self._after = self._given_out = state
        return True

    def state(self) -> ModelState:
        """After the last step."""
        if self._given_out is None:
            now = iter(self._tensors())
            self._given_out = self._after.map(lambda _tensor, _: next(now))
        return self._given_out

    def _tensors(self) -> list[Tensor]:
        """Of the state after the last step."""
        now, kept = iter(self._now), iter(self._kept)
        return [next(now) if carried else next(kept) for carried in self._carried]

    def _of_carried(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor for tensor, carried in zip(tensors, self._carried, strict=True) if carried]


def _counts(moving: Tensor | None) -> Tensor | None:
    return None if moving is None else moving.long()


def _room(bound: int, capacity: int) -> int:
    """The bound of the tape that serves a step of this one."""
    block = max(BLOCK, 1 << (bound // 16).bit_length())
    room = -(-bound // block) * block
    return capacity if capacity - room < max(WORTH, room // 4) else room


def _tensors(state: ModelState) -> list[Tensor]:
    """In the order in which `State.map` visits them."""
    return [tensor for tensor, _ in state.tensors().values()]


def _fits(new: Tensor, own: Tensor, field: TensorField) -> bool:
    """Rows of ``new`` can be copied into ``own`` as they are, whose room is enough."""
    return new.dtype == own.dtype and new.dim() == own.dim() and all(
        given == size or (dim == field.grows and given < size)
        for dim, (given, size) in enumerate(zip(new.shape, own.shape, strict=True)) if dim)


def _same(old: Tensor, new: Tensor) -> bool:
    """Two names of one tensor in memory."""
    return old is new or (old.data_ptr() == new.data_ptr() != 0 and old.shape == new.shape
                          and old.stride() == new.stride() and old.dtype == new.dtype)


def _alike(before: ModelState, after: ModelState) -> bool:
    """The same facts, and tensors of the same shapes."""
    old, new = _tensors(before), _tensors(after)
    if [(tensor.shape, tensor.dtype) for tensor in old] != [(tensor.shape, tensor.dtype) for tensor in new]:
        return False
    blank = torch.empty(0)
    return before.map(lambda _, __: blank) == after.map(lambda _, __: blank)


def _equal(one: ModelState, other: ModelState) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def hooks_of(model: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """What is called with each part of a model, now or later (probes, hooks of the user's own): a tape calls none of
    it."""
    return tuple(hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))
