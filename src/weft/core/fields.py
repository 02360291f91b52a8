"""What a state declares of its fields: how each grows, what fills it, how it is joined and saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch

from weft.core.errors import StateError

Along: TypeAlias = Literal["tokens", "source"]


@dataclass(frozen=True)
class TensorField:
    """What a state promises about one tensor field.

    Attributes:
        grows: the dimension that gets longer as tokens arrive (keys and values: 1), or None when the field is bounded.
        fill: the value of entries that hold nothing yet.
        keeps_dtype: True when the field stays in its own dtype whatever the model computes in (float32 accumulators,
            integer counters).
        as_given: True when its dtype, and its dimensions after the second, are those of what the calls gave
            (coordinates), so that a state before the first token does not know them yet.
        along: what the growing dimension counts: ``tokens`` that calls read, each in the slot of its order and never
            written again, or the ``source`` that the state was started with, which no call changes.
        restarts: True for what is zero before a row's first token and says how far the row has come (the clock).
    """

    grows: int | None = None
    fill: float | int | bool = 0
    keeps_dtype: bool = False
    as_given: bool = False
    along: Along = "tokens"
    restarts: bool = False


@dataclass(frozen=True)
class FactField:
    """What a state promises about one plain Python field.

    Attributes:
        saved: the type as which it is written to files, whole numbers being 0 or more; None: it is not written, since
            an ``init_state`` of the same model knows it.
        unsaved: what it is where no number of its own was written.
        joined: how the fact of joined states follows from theirs; None: they must agree.
        room: it is the number of tokens that the buffers were made for, None when they grow with each call. A batch
            has the most that any of its rows had, and keeps it when a row is admitted.
    """

    saved: type[bool] | type[int] | None = None
    unsaved: Any = None
    joined: Callable[[Sequence[Any]], Any] | None = None
    room: bool = False


@final
class Lease:
    """Whether a call has consumed the buffers of a state. The only thing about a state that changes in place: what
    shares buffers shares the lease, and what was copied has one of its own."""

    consumed = False

    def require(self) -> None:
        """Refuse a state that was consumed.

        Raises:
            StateError: it was.
        """
        if self.consumed:
            raise StateError("an earlier call has consumed this state, so its buffers may hold later tokens.",
                             where="state", remedy="Go on with the state that the call returned, or clone() or "
                             "select() the state before the call to use it twice.")

    def consume(self) -> None:
        """Take the state for a call, which has it even if it fails midway. With gradients on nothing is written in
        place, so the state stays as it is.

        Raises:
            StateError: another call has taken it.
        """
        if self.consumed:
            self.require()
        if not torch.is_grad_enabled():
            self.consumed = True


def tensor_field(*, grows: int | None = None, fill: float | int | bool = 0, keeps_dtype: bool = False,
                 as_given: bool = False, along: Along = "tokens", restarts: bool = False) -> Any:
    """Declare a tensor field of a `State` (batch is dimension 0)."""
    return dataclasses.field(metadata={"weft": TensorField(grows, fill, keeps_dtype, as_given, along, restarts)})


def fact_field(*, saved: type[bool] | type[int] | None = None, unsaved: Any = None,
               joined: Callable[[Sequence[Any]], Any] | None = None, room: bool = False) -> Any:
    """Declare a plain Python field of a `State`, the same for all rows."""
    return dataclasses.field(metadata={"weft": FactField(saved, unsaved, most if room else joined, room)})


def most(rooms: Sequence[int | None]) -> int | None:
    """The largest number of tokens; None where one of them grows with each call."""
    known = [room for room in rooms if room is not None]
    return max(known) if len(known) == len(rooms) else None


def lease_field() -> Any:
    """Declare the `Lease` of a `State`'s buffers."""
    return dataclasses.field(default_factory=Lease, repr=False, compare=False)


def child_field() -> Any:
    """Declare a nested state, or a tuple of them, after fields that were declared by the functions above."""
    return dataclasses.field()
