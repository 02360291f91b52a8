"""The steps of a batch, one token in every row: run by the model's code at first, and replayed from tapes thereafter.

A tape is the list of a step's tensor operations without the Python code around them (`weft.decoding.tape`). All steps
of a tape have the same shapes and facts, so keys are read up to a bound that stays constant for many steps, and masks
hide the slots that are not filled yet. Every tape is first replayed once beside an ordinary step, and used from then on
only if both agree bit for bit.
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
"""Returns the logits [B,V] after one more token [B] in every row, and the new state; consumes the state passed in."""

PATIENCE = 1
"""Ordinary steps before the first recording, which some eight steps repay: a text of one or two tokens does not."""
WORTH = 24
"""The fewest steps that repay the recording of a tape."""
BLOCK = 256
"""The most unfilled key slots that a tape reads, or an eighth of the filled ones if that is more. Up to a quarter more
of all slots are read if the tape then lasts to the state's capacity."""


@final
class Steps:
    """Runs steps and stores the state.

    Args:
        work: the ordinary step.
        state: the state before the first step.
        capacity: number of tokens that the state has room for.
        plain: run every step as an ordinary one.
        hooks: the hooks of the model's modules (`hooks_of`); while there are any, every step is an ordinary one.
    """

    def __init__(self, work: Work, state: ModelState, capacity: int, *, plain: bool,
                 hooks: Sequence[Mapping[int, Any]] = ()) -> None:
        self._work, self._state, self._capacity, self._plain = work, state, capacity, plain
        self._hooks = hooks
        self._tape: _Tape | None = None
        self._trusted, self._wait = False, PATIENCE

    @property
    def state(self) -> ModelState:
        """The state after the last step."""
        return self._state if self._tape is None else self._tape.state()

    @property
    def by_tape(self) -> bool:
        """Whether steps replay a tape that has been verified."""
        return self._tape is not None and self._trusted

    def go_on_from(self, state: ModelState) -> None:
        """Continue from another state of the same capacity; the tape is discarded."""
        self._state, self._tape, self._wait = state, None, PATIENCE

    def admit(self, rows: Sequence[int], other: ModelState) -> None:
        """Write the rows of another state to the places ``rows``; a tape stays valid."""
        if not (self._tape is not None and self._tape.admit(rows, other)):
            self._go_on_with(admit(self.state, rows, other))

    def retire(self, rows: Sequence[int]) -> None:
        """Reset ``rows``; a tape stays valid."""
        if rows and not (self._tape is not None and self._tape.retire(rows)):
            self._go_on_with(retire(self.state, rows))

    def _go_on_with(self, state: ModelState) -> None:
        """Continue from a state whose rows were changed in place; the tape is discarded if its tensors are others."""
        if self._tape is None or not self._tape.goes_on_with(state):
            self._state, self._tape = state, None

    def take(self, tokens: Tensor, moving: Tensor | None, bound: int, *, uniform: bool) -> Tensor:
        """Return the logits [B,V] after one more token in every row, or in the rows that are ``moving``.

        Args:
            tokens: ids [B].
            moving: flags [B]; None: all rows advance.
            bound: upper bound on each row's number of tokens, this one included.
            uniform: whether every row has exactly ``bound`` tokens.
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
        """Run an ordinary step, and record it."""
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
        """Replay a tape. The first replay is compared with an ordinary step, whose result is the one returned."""
        beside = None if self._trusted else tape.state().clone()
        try:
            logits = tape.play(tokens, moving)
        except ChangedError:  # a recorded check has another outcome; an ordinary step raises its error, if it is one
            self._state, self._tape, self._plain = tape.state() if beside is None else beside, None, True
            return self._ordinary(tokens, Span(count=_counts(moving), bound=tape.room))
        if beside is None:
            return logits
        wanted, after = self._work(tokens, beside, Span(count=_counts(moving), bound=tape.room))
        self._trusted = same_bits(logits, wanted) and _equal(tape.state(), after)
        if not self._trusted:
            self._state, self._tape, self._plain = after, None, True
        return wanted


@final
class _Tape:
    """A tape, and the tensors that each of its steps passes on to the next."""

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
        """Return whether the tape can replay such a step."""
        return bound <= self.room and self._all_move == (moving is None)

    def play(self, tokens: Tensor, moving: Tensor | None) -> Tensor:
        """Replay one step, and return its logits."""
        given = (tokens,) if moving is None else (tokens, moving)
        logits, *self._now = self._step(*given, *self._now)
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
        own, new = self._tensors(), _tensors(other)
        if self._given_out is not None or not all(
                _fits(*each) for each in zip(new, own, self._fields, strict=True)):
            return False
        places = torch.tensor(list(rows))
        for tensor, lines, field in zip(own, new, self._fields, strict=True):
            written(tensor, places, lines, field)
        return True

    def goes_on_with(self, state: ModelState) -> bool:
        """Continue with a state that has the same tensor objects, with other rows in them; returns False if it has
        others."""
        if any(new is not old for old, new in zip(self._tensors(), _tensors(state), strict=True)):
            return False
        self._after = self._given_out = state
        return True

    def state(self) -> ModelState:
        """Return the state after the last step."""
        if self._given_out is None:
            now = iter(self._tensors())
            self._given_out = self._after.map(lambda _tensor, _: next(now))
        return self._given_out

    def _tensors(self) -> list[Tensor]:
        """Return the tensors of the state after the last step."""
        now, kept = iter(self._now), iter(self._kept)
        return [next(now) if carried else next(kept) for carried in self._carried]

    def _of_carried(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor for tensor, carried in zip(tensors, self._carried, strict=True) if carried]


def _counts(moving: Tensor | None) -> Tensor | None:
    return None if moving is None else moving.long()


def _room(bound: int, capacity: int) -> int:
    """Return the bound of the tape that includes a step with this bound."""
    block = max(BLOCK, 1 << (bound // 16).bit_length())
    room = -(-bound // block) * block
    return capacity if capacity - room < max(WORTH, room // 4) else room


def _tensors(state: ModelState) -> list[Tensor]:
    """Return the state's tensors in the order in which `State.map` visits them."""
    return [tensor for tensor, _ in state.tensors().values()]


def _fits(new: Tensor, own: Tensor, field: TensorField) -> bool:
    """Return whether rows of ``new`` can be copied into ``own``: same dtype and sizes, and no more slots."""
    return new.dtype == own.dtype and new.dim() == own.dim() and all(
        given == size or (dim == field.grows and given < size)
        for dim, (given, size) in enumerate(zip(new.shape, own.shape, strict=True)) if dim)


def _same(old: Tensor, new: Tensor) -> bool:
    """Return whether both are the same tensor or the same view of one storage."""
    return old is new or (old.data_ptr() == new.data_ptr() != 0 and old.shape == new.shape
                          and old.stride() == new.stride() and old.dtype == new.dtype)


def _alike(before: ModelState, after: ModelState) -> bool:
    """Return whether two states have equal facts, and tensors of equal shapes and dtypes."""
    old, new = _tensors(before), _tensors(after)
    if [(tensor.shape, tensor.dtype) for tensor in old] != [(tensor.shape, tensor.dtype) for tensor in new]:
        return False
    blank = torch.empty(0)
    return before.map(lambda _, __: blank) == after.map(lambda _, __: blank)


def _equal(one: ModelState, other: ModelState) -> bool:
    return all(same_bits(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have equal shapes and dtypes, and the same bits in every number. They are compared by
    eight bytes at a time where they have so many, which takes a fifth of the time of numbers in bfloat16."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    pair = [tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8) for tensor in (one, other)]
    if all(flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0 for flat in pair):
        pair = [flat.view(torch.int64) for flat in pair]
    return torch.equal(*pair)


def hooks_of(model: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """Return the hook dictionaries of each module, which also hold the hooks that are registered later (by probes or by
    the user). A tape calls no hooks."""
    return tuple(hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))
