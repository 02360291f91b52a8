"""Operations of serving on a state: rows that join and leave in place, memory that is freed, marks to rewind to.

    batch = admit(batch, [3], row)      row 3 of the batch is replaced by the row of another state
    batch = retire(batch, [3])          row 3 starts again from nothing and needs no slots
    batch = trim(batch)                 slots that no row needs are freed
    here = mark(batch)                  copies the fields that are not stored by order of tokens
    batch = rewind(batch, here)         the batch as it was at the mark

All are written once, over the declarations of fields. With gradients off they write into the state's own tensors, whose
addresses do not change, so that a recorded or compiled step remains valid; with gradients on every result is a new
value. Either way the operation consumes the state that it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.compiling import require
from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.state import (
    FactField,
    Join,
    Lease,
    Settle,
    State,
    TensorField,
    as_declared,
    leaves,
    map_together,
    pad_to,
    walk,
)

S = TypeVar("S", bound=LayerState)
Rows = Int64[Tensor, " rows"] | Sequence[int]


def admit(state: S, rows: Rows, other: S) -> S:
    """Put the rows of ``other`` in place of ``rows`` of ``state``; the remaining rows do not change.

    Args:
        state: the batch. Its capacity does not change; buffers without a capacity are lengthened if necessary.
        rows: indices into the batch, one for each row of ``other``, none twice.
        other: copied from, and not consumed.

    Raises:
        StateError: the rows do not fit, the states are of different models or dtypes, or ``other`` has more slots than
            the batch has capacity for.
    """
    places = _row_indices(state, rows, "admit")
    if len(places) != other.batch():
        raise StateError(f"{len(places)} places for a state of {other.batch()} rows.", where="admit",
                         remedy="Give one place for each row of the other state.")
    _require_room(state, other)

    def write(tensors: list[Tensor], spec: TensorField) -> Tensor:
        batch, new = tensors
        # A copy that would round is refused: dtypes are equal, or the batch's represents both where calls give them.
        rounds = not spec.as_given or torch.promote_types(batch.dtype, new.dtype) != batch.dtype
        if batch.dtype != new.dtype and rounds:
            raise StateError(f"rows of dtype {new.dtype} for a batch of {batch.dtype}.", where="admit",
                             remedy="Start both with the same dtype, or cast the rows with State.to.")
        if batch.shape[2:] != new.shape[2:] and spec.as_given:
            raise StateError(f"{list(new.shape[2:]) or 'one'} coordinates a token, and the batch has "
                             f"{list(batch.shape[2:]) or 'one'}.", where="admit",
                             remedy="Admit rows whose calls gave coordinates of the batch's shape.")
        return written(batch, places, new, spec)

    def settle(values: list[Any], spec: FactField) -> Any:
        return values[0] if spec.room else as_declared(values, spec)

    return _in_place([state, other], write, settle)


def retire(state: S, rows: Rows) -> S:
    """Reset the clock of ``rows``, so that they have read nothing and need no slots. Their other fields stay until a
    row is admitted in their place; until then any tokens may be passed for them, and their outputs are meaningless.
    Raises `StateError`: the state does not have one of the rows."""
    places = _row_indices(state, rows, "retire")

    def restarted(tensors: list[Tensor], spec: TensorField) -> Tensor:
        if not spec.restarts:
            return tensors[0]
        fill = Tensor.index_fill if torch.is_grad_enabled() else Tensor.index_fill_
        return fill(tensors[0], 0, places.to(tensors[0].device), 0)

    return _in_place([state], restarted)


def trim(state: S, slots: int | None = None) -> S:
    """Change the number of slots of ``state`` to ``slots`` tokens a row, freeing memory or reserving more. Fields that
    do not grow with tokens keep their tensors.

    Args:
        slots: None: the number of tokens that the longest row has read, which is read from the clock on the host.

    Raises:
        StateError: a row has read more than ``slots`` tokens.
    """
    read = int(state.clock.seen.max()) if state.batch() else 0
    room = read if slots is None else slots
    if room < read:
        raise StateError(f"room for {room} tokens, and a row has read {read}.", where="trim",
                         remedy=f"Give {read} or more, or retire the row.")

    def cut(tensors: list[Tensor], spec: TensorField) -> Tensor:
        tensor = tensors[0]
        if spec.grows is None or spec.along != "tokens" or tensor.shape[spec.grows] == room:
            return tensor
        return pad_to(tensor.narrow(spec.grows, 0, min(room, tensor.shape[spec.grows])).clone(), spec.grows, room,
                      spec.fill)

    def settle(values: list[Any], spec: FactField) -> Any:
        return values[0] if values[0] is None or not spec.room else room

    return _in_place([state], cut, settle)


def cut_out(state: S, row: int, tokens: int | None = None) -> S:
    """Return a copy of one row with slots for just the tokens that it has read, in one walk; ``state`` is not consumed.

    Args:
        tokens: its first ones alone, of a state whose fields are all stored by order of tokens; None: all it has read.
    """
    room = int(state.clock.seen[row]) if tokens is None else tokens

    def cut(tensors: list[Tensor], spec: TensorField) -> Tensor:
        tensor = tensors[0][row : row + 1]
        if spec.restarts and tokens is not None:
            return tensor.clamp(max=tokens)
        if spec.grows is None or spec.along != "tokens":
            return tensor.clone()
        return tensor.narrow(spec.grows, 0, min(room, tensor.shape[spec.grows])).clone(
            memory_format=torch.contiguous_format)

    def settle(values: list[Any], spec: FactField) -> Any:
        return room if spec.room and values[0] is not None else values[0]

    return map_together([state], cut, forks=True, settle=settle)


@dataclass(frozen=True)
class Mark(Generic[S]):
    """A point to rewind to, any number of times.

    Attributes:
        kept: the state at the mark without the fields that grow. Those are stored by order of tokens and never
            overwritten, so the clock determines how many of their slots count.
    """

    kept: S

    def nbytes(self) -> int:
        """Bytes that the mark holds."""
        return self.kept.nbytes()


def mark(state: S) -> Mark[S]:
    """A `Mark` of ``state``. The state is not consumed: calls may go on with it, and `rewind` restores it. Raises
    `StateError`: a call has consumed the state."""
    def keep(tensors: list[Tensor], spec: TensorField) -> Tensor:
        tensor = tensors[0]
        return (tensor if spec.grows is None else tensor.narrow(spec.grows, 0, 0)).clone()

    return Mark(map_together([state], keep, forks=True))


def rewind(state: S, to: Mark[S]) -> S:
    """The state as it was at the mark.

    Args:
        state: a state that calls have advanced from the mark; none of its rows was admitted, selected or retired since.
        to: the mark.

    Raises:
        StateError: the mark is of another model or another number of rows.
    """
    if state.batch() != to.kept.batch():
        raise StateError(f"a mark of {to.kept.batch()} rows for a state of {state.batch()}.", where="rewind",
                         remedy="Rewind the state that went on from the mark, with the same rows.")

    def back(tensors: list[Tensor], spec: TensorField) -> Tensor:
        now, then = tensors
        if spec.grows is not None:
            return now
        if torch.is_grad_enabled() or now.shape != then.shape or now.dtype != then.dtype:
            return then.clone()
        return now.copy_(then)

    def settle(values: list[Any], spec: FactField) -> Any:
        return values[0] if spec.room else values[1]

    return _in_place([state, to.kept], back, settle)


def _own(values: list[Any], spec: FactField) -> Any:
    return values[0]


def _in_place(states: list[S], join: Join, settle: Settle = _own) -> S:
    """The result of `map_together`, which consumes the first of the states."""
    result = map_together(states, join, forks=True, settle=settle)
    for _, value, _ in leaves(states[0]):
        if isinstance(value, Lease):
            value.consume()
    return result


def _row_indices(state: State, rows: Rows, where: str) -> Tensor:
    """The rows as a tensor, checked to be rows of the state, none twice."""
    chosen, count = torch.as_tensor(rows, dtype=torch.int64), state.batch()
    require((chosen >= 0) & (chosen < count), StateError, f"a row outside a state of {count} rows.", where=where,
            remedy=f"Give rows from 0 to {count - 1}.")
    if len(set(chosen.tolist())) < len(chosen):
        raise StateError(f"a row given twice: {chosen.tolist()}.", where=where, remedy="Give every row once.")
    return chosen


def _require_room(state: State, other: State) -> None:
    """Refuse rows with more slots than the batch was reserved for."""
    facts = [value for _, value, spec in leaves(state) if isinstance(spec, FactField) and spec.room]
    rooms = [room for room in facts if room is not None]
    longest = max((tensor.shape[spec.grows] for _, tensor, spec in walk(other)
                   if spec.grows is not None and spec.along == "tokens"), default=0)
    if rooms and longest > min(rooms):
        raise StateError(f"a row of {longest} slots for a batch with room for {min(rooms)} tokens a row.",
                         where="admit", remedy="Start the batch with a larger capacity, or trim() the row first to "
                         "what it has read.")


def written(batch: Tensor, places: Tensor, new: Tensor, spec: TensorField) -> Tensor:
    """``batch`` with ``new`` in the rows ``places``, padded with the fill where ``new`` is shorter."""
    size = None if spec.grows is None else new.shape[spec.grows]
    if spec.grows is not None and size is not None:
        batch = pad_to(batch, spec.grows, size, spec.fill)
    if torch.is_grad_enabled():
        long = new if spec.grows is None else pad_to(new, spec.grows, batch.shape[spec.grows], spec.fill)
        return batch.index_copy(0, places.to(batch.device), long.to(batch.dtype))
    for row, line in zip(places.tolist(), new, strict=True):
        place = batch[row]  # a row is contiguous, so it is copied at the speed of memory
        if spec.grows is None or size is None:
            place.copy_(line)
            continue
        place.narrow(spec.grows - 1, 0, size).copy_(line)
        place.narrow(spec.grows - 1, size, place.shape[spec.grows - 1] - size).fill_(spec.fill)
    return batch
