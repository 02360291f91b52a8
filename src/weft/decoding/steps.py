"""The steps of a batch, one token in every row: run by the model's code at first, and replayed from tapes thereafter.

A tape is the list of a step's tensor operations without the Python code around them (`weft.decoding.tape`). All steps
of a tape have the same shapes and facts, so keys are read up to a bound that stays constant for many steps, and masks
hide the slots that are not filled yet. Every tape is first replayed once beside an ordinary step, and used from then on
only if both agree bit for bit. A tape is kept with its model for the next text (`weft.decoding.kept_tape`), where its
first replay is compared again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from torch import Tensor, nn

from weft.core.model import ModelState
from weft.core.rows import admit, cut_out, retire
from weft.core.span import Span
from weft.decoding.kept_tape import TapeConditions, kept_tape
from weft.decoding.recording import FunctionRecorder
from weft.decoding.step_tape import StepTape
from weft.decoding.tape import ChangedError
from weft.decoding.tape_sources import same_bits
from weft.gpu.graphs import alike, tensors_of

Work = Callable[[Tensor, ModelState, Span], tuple[Tensor, ModelState]]
"""Returns the logits [B,V] after one more token [B] in every row, and the new state; consumes the state passed in."""

PATIENCE = 1
"""Ordinary steps before the first recording, which some eight steps repay: a text of one or two tokens does not."""
WORTH = 24
"""The fewest steps that repay the recording of a tape."""
BLOCK = 256
"""The most unfilled key slots that a tape reads, or an eighth of the filled ones if that is more. Up to a quarter more
of all slots are read if the tape then lasts to the state's capacity."""
GPU_BLOCK = 4096
"""The same on a GPU, where attention of one query reads no unfilled slots (`weft.ops.triton.query_attention`), and a
tape is a graph, which takes as long to make as some hundred steps."""


@final
class Steps:
    """Runs steps and stores the state.

    Args:
        state: the state before the first step.
        capacity: number of tokens that the state has room for.
        plain: run every step as an ordinary one.
        model: whose step it is. While its modules have hooks, every step is an ordinary one.
    """

    def __init__(self, work: Work, state: ModelState, capacity: int, *, plain: bool, model: nn.Module) -> None:
        self._work, self._state, self._capacity, self._plain = work, state, capacity, plain
        self._model, self._hooks = model, hooks_of(model)
        self._tape: StepTape | None = None
        self._surroundings: TapeConditions | None = None
        self._trusted, self._wait = False, PATIENCE
        self._first, self._resumed, self._lent = True, False, False
        self._obstacle = "no step was recorded"

    @property
    def state(self) -> ModelState:
        """The state after the last step."""
        self._lent = True
        return self._now()

    def copy_of(self, row: int) -> ModelState:
        """Return a copy of the state of one row."""
        return cut_out(self._state, row) if self._tape is None else self._tape.copy_of(row)

    def _now(self) -> ModelState:
        return self._state if self._tape is None else self._tape.state()

    @property
    def by_tape(self) -> bool:
        """Whether steps replay a tape that has been verified."""
        return self._tape is not None and self._trusted

    @property
    def without_graph(self) -> str | None:
        """Why steps are no replays of a CUDA graph (`weft.gpu.graphs`); None where they are."""
        return self._obstacle if self._tape is None else self._tape.step.obstacle

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
        first, self._first = self._first, False
        if any(self._hooks):
            self.go_on_from(self._now())
            return self._ordinary(tokens, Span(count=_counts(moving), bound=bound, uniform=uniform))
        if self._tape is not None and self._tape.serves(moving, bound):
            return self._play(tokens, moving)
        self._state, self._tape = self._now(), None
        room = _room(bound, self._capacity, GPU_BLOCK if tokens.is_cuda else BLOCK)
        pays = not self._plain and room - bound >= WORTH
        if pays and first and self._resume(moving, room):
            return self._play(tokens, moving)
        if pays and not self._wait:
            return self._record(tokens, moving, room)
        self._wait = max(0, self._wait - 1)
        return self._ordinary(tokens, Span(count=_counts(moving), bound=bound, uniform=uniform))

    def _ordinary(self, tokens: Tensor, span: Span) -> Tensor:
        logits, self._state = self._work(tokens, self._state, span)
        return logits

    def close(self) -> None:
        """End: no step is taken any more. A tape is kept for the model's next text, unless a state was returned, which
        may be in use."""
        tape, self._tape = self._tape, None
        if tape is not None and self._trusted and self._surroundings is not None and not self._lent:
            kept_tape(self._model).put(tape, self._surroundings)

    def _resume(self, moving: Tensor | None, room: int) -> bool:
        """Go on by the tape that was kept with the model, if it can take these steps and reads not too many keys."""
        found = kept_tape(self._model).take(self._model, lambda tape: tape.serves(moving, room) and (
            tape.room <= 2 * room and tape.takes(self._state)))
        if found is None:
            return False
        self._tape, self._surroundings = found
        self._tape.go_on_from(self._state)
        self._state = self._tape.state()
        self._trusted, self._resumed = False, True
        return True

    def _record(self, tokens: Tensor, moving: Tensor | None, room: int) -> Tensor:
        """Run an ordinary step, and record it."""
        before, self._surroundings = self._state, TapeConditions(self._model)
        with FunctionRecorder() as recorder:
            logits = self._ordinary(tokens, Span(count=_counts(moving), bound=room))
        if recorder.obstacle is None and alike(before, self._state):
            self._tape = StepTape(recorder.recording, tokens, moving, before, self._state, logits, room)
            self._trusted, self._resumed = False, False
        else:
            self._plain, self._obstacle = True, recorder.obstacle or "its state changes with each step"
        return logits

    def _play(self, tokens: Tensor, moving: Tensor | None) -> Tensor:
        """Replay the tape. Its first replay in a text is compared with an ordinary step, whose result is the one
        returned. If a tape of this text differs, then the model's steps are not alike, and all others are ordinary
        ones; if a tape of an earlier text does, then the model has changed, and a step is recorded anew."""
        tape = self._tape
        assert tape is not None, "there is a tape"
        beside = None if self._trusted else tape.state().clone()
        try:
            logits = tape.play(tokens, moving)
        except ChangedError:  # a recorded check has another outcome; an ordinary step raises its error, if it is one
            self._state, self._tape, self._plain = tape.state() if beside is None else beside, None, True
            return self._ordinary(tokens, Span(count=_counts(moving), bound=tape.room))
        if beside is None:
            return logits
        wanted, after = self._work(tokens, beside, Span(count=_counts(moving), bound=tape.room))
        self._trusted = same_bits(logits, wanted) and all(
            same_bits(own, other) for own, other in zip(tensors_of(tape.state()), tensors_of(after), strict=True))
        if not self._trusted:
            self._state, self._tape, self._plain = after, None, not self._resumed
            self._obstacle = "a replay differed from the model's own step"
        return wanted


def _counts(moving: Tensor | None) -> Tensor | None:
    return None if moving is None else moving.long()


def _room(bound: int, capacity: int, least: int) -> int:
    """Return the bound of the tape that includes a step with this bound; tapes read ``least`` slots or more."""
    block = max(least, 1 << (bound // 16).bit_length())
    room = -(-bound // block) * block
    return capacity if capacity - room < max(WORTH, room // 4) else room


def hooks_of(model: nn.Module) -> tuple[Mapping[int, Any], ...]:
    """Return the hook dictionaries of each module, which also hold the hooks that are registered later (by probes or by
    the user). A tape calls no hooks."""
    return tuple(hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))
