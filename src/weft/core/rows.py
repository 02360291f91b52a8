"""What serving does with a state: rows that come and go in place, memory that is given back, marks to rewind to.

    batch = admit(batch, [3], row)      row 3 of the batch is now the row of another state
    batch = retire(batch, [3])          row 3 starts again from nothing and needs no room
    batch = trim(batch)                 slots that no row needs are given back
    here = mark(batch)                  copies what is not kept by order of tokens
    batch = rewind(batch, here)         the batch as it was at the mark

All are written once, over the declarations of fields. With gradients off they write into the state's own tensors, whose
addresses stay, so that a recorded or compiled step goes on; with gradients on every result is a new value. Either way
the result takes the state's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.checks import require
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
    """``state`` with the rows of ``other`` in the places ``rows``; what other rows hold is not touched.

    Args:
        state: the batch. Its room stays as it is; one that was started without a capacity is lengthened where it must.
        rows: places in the batch, one for each row of ``other``, none twice.
        other: copied from, and still good afterwards.

    Raises:
        StateError: rows that do not fit, states of different models or dtypes, more slots than the batch has room for.
    """
    places = _places(state, rows, "admit")
    if len(places) != other.batch():
        raise StateError(f"{len(places)} places for a state of {other.batch()} rows.", where="admit",
                         remedy="Give one place for each row of the other state.")
    _require_room(state, other)

    def write(tensors: list[Tensor], spec: TensorField) -> Tensor:
        own, new = tensors
        _require_dtype(own, new, spec)
        if own.shape[2:] != new.shape[2:] and spec.as_given:
            raise StateError(f"{list(new.shape[2:]) or 'one'} coordinates a token, and the batch has "
                             f"{list(own.shape[2:]) or 'one'}.", where="admit",
                             remedy="Admit rows whose calls gave coordinates of the batch's shape.")
        return written(own, places, new, spec)

    def settle(values: list[Any], spec: FactField) -> Any:
        return values[0] if spec.room else as_declared(values, spec)

    return _in_place([state, other], write, settle)


def retire(state: S, rows: Rows) -> S:
    """``state`` in which ``rows`` have read nothing, so that they need no room. What else they hold is left to the row
    that is admitted next; until then they may be run along with any tokens, whose outputs mean nothing.

    Raises:
        StateError: a row that the state has not.
    """
    places = _places(state, rows, "retire")

    def begin_again(tensors: list[Tensor], spec: TensorField) -> Tensor:
        if not spec.restarts:
            return tensors[0]
        fill = Tensor.index_fill if torch.is_grad_enabled() else Tensor.index_fill_
        return fill(tensors[0], 0, places.to(tensors[0].device), 0)

    return _in_place([state], begin_again)


def trim(state: S, slots: int | None = None) -> S:
    """``state`` with room for ``slots`` tokens a row: memory that no row needs is given back, or more is reserved.
    Fields that do not grow with tokens are the same tensors.

    Args:
        slots: None: as many as the longest row has read, which is looked up.

    Raises:
        StateError: a row has read more than ``slots`` tokens.
    """
    read = int(state.clock.seen.max()) if state.batch() else 0
    wanted = read if slots is None else slots
    if wanted < read:
        raise StateError(f"room for {wanted} tokens, and a row has read {read}.", where="trim",
                         remedy=f"Give {read} or more, or retire the row.")

    def cut(tensors: list[Tensor], spec: TensorField) -> Tensor:
        tensor = tensors[0]
        if spec.grows is None or spec.along != "tokens" or tensor.shape[spec.grows] == wanted:
            return tensor
        return pad_to(tensor.narrow(spec.grows, 0, min(wanted, tensor.shape[spec.grows])).clone(), spec.grows, wanted,
                      spec.fill)

    def settle(values: list[Any], spec: FactField) -> Any:
        return values[0] if values[0] is None or not spec.room else wanted

    return _in_place([state], cut, settle)


@final
@dataclass(frozen=True)
class Mark(Generic[S]):
    """A place to rewind to, good for any number of times.

    Attributes:
        kept: the state at the mark without what grows: that is kept by order, so the clock tells how much of it counts.
    """

    kept: S

    def nbytes(self) -> int:
        """Bytes that the mark holds."""
        return self.kept.nbytes()


def mark(state: S) -> Mark[S]:
    """A `Mark` of ``state``, which stays good: calls may go on with it, and `rewind` brings back what it was.

    Raises:
        StateError: a call has consumed the state.
    """
    def keep(tensors: list[Tensor], spec: TensorField) -> Tensor:
        tensor = tensors[0]
        return (tensor if spec.grows is None else tensor.narrow(spec.grows, 0, 0)).clone()

    return Mark(map_together([state], keep, forks=True))


def rewind(state: S, to: Mark[S]) -> S:
    """What the state was at the mark. ``state`` has gone on from there; none of its rows was admitted, selected or
    retired since.

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
    """What `map_together` makes of them; it takes the place of the first, which is consumed."""
    result = map_together(states, join, forks=True, settle=settle)
    for _, value, _ in leaves(states[0]):
        if isinstance(value, Lease):
            value.consume()
    return result


def _places(state: State, rows: Rows, where: str) -> Tensor:
    chosen, count = torch.as_tensor(rows, dtype=torch.int64), state.batch()
    require((chosen >= 0) & (chosen < count), StateError, f"a row outside a state of {count} rows.", where=where,
            remedy=f"Give rows from 0 to {count - 1}.")
    if len(set(chosen.tolist())) < len(chosen):
        raise StateError(f"a row given twice: {chosen.tolist()}.", where=where, remedy="Give every row once.")
    return chosen


def _require_room(state: State, other: State) -> None:
    """The other's rows fit into what the batch was made for."""
    facts = [value for _, value, spec in leaves(state) if isinstance(spec, FactField) and spec.room]
    rooms = [room for room in facts if room is not None]
    longest = max((tensor.shape[spec.grows] for _, tensor, spec in walk(other)
                   if spec.grows is not None and spec.along == "tokens"), default=0)
    if rooms and longest > min(rooms):
        raise StateError(f"a row of {longest} slots for a batch with room for {min(rooms)} tokens a row.",
                         where="admit", remedy="Start the batch with a larger capacity, or trim() the row first to "
                         "what it has read.")


def _require_dtype(own: Tensor, new: Tensor, spec: TensorField) -> None:
    """Copying does not round: the same dtype, or for what calls gave one that holds both."""
    if own.dtype != new.dtype and (not spec.as_given or torch.promote_types(own.dtype, new.dtype) != own.dtype):
        raise StateError(f"rows of dtype {new.dtype} for a batch of {own.dtype}.", where="admit",
                         remedy="Start both with the same dtype, or cast the rows with State.to.")


def written(own: Tensor, places: Tensor, new: Tensor, spec: TensorField) -> Tensor:
    """``own`` with ``new`` in the rows ``places``, and the fill behind what is shorter."""
    size = None if spec.grows is None else new.shape[spec.grows]
    if spec.grows is not None and size is not None:
        own = pad_to(own, spec.grows, size, spec.fill)
    if torch.is_grad_enabled():
        long = new if spec.grows is None else pad_to(new, spec.grows, own.shape[spec.grows], spec.fill)
        return own.index_copy(0, places.to(own.device), long.to(own.dtype))
    for row, line in zip(places.tolist(), new, strict=True):
        place = own[row]  # a row lies in one piece, so it is copied at the speed of memory
        if spec.grows is None or size is None:
            place.copy_(line)
            continue
        place.narrow(spec.grows - 1, 0, size).copy_(line)
        place.narrow(spec.grows - 1, size, place.shape[spec.grows - 1] - size).fill_(spec.fill)
    return own
