"""Declarations of the fields of a state: how each grows, what fills it, how it is joined and saved."""

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
    """The declaration of one tensor field of a state.

    Attributes:
        grows: the dimension that gets longer as tokens arrive (keys and values: 1); None for a bounded field.
        fill: the value of slots without a token.
        keeps_dtype: whether the field keeps its dtype whatever the model computes in (float32 accumulators, integer
            counters).
        as_given: whether its dtype and its dimensions after the second are those of what calls give (coordinates), so
            that they are not fixed before the first token.
        along: what the growing dimension counts: ``tokens`` that calls read, each in the slot of its order and never
            overwritten, or the ``source`` that the state was started with, which no call changes.
        restarts: whether it is zero before a row's first token and counts the row's progress (the clock).
    """

    grows: int | None = None
    fill: float | int | bool = 0
    keeps_dtype: bool = False
    as_given: bool = False
    along: Along = "tokens"
    restarts: bool = False


@dataclass(frozen=True)
class FactField:
    """The declaration of one plain Python field of a state, called a fact.

    Attributes:
        saved: the type as which it is written to files, whole numbers being 0 or more; None: it is not written, since
            ``init_state`` of the same model gives the same value.
        unsaved: its value where a file has none.
        joined: the fact of joined states from theirs; None: theirs must agree.
        room: whether it is the number of tokens that buffers were reserved for, None if they grow with each call. A
            joined state has the largest of its rows, and admitting a row does not change it.
    """

    saved: type[bool] | type[int] | None = None
    unsaved: Any = None
    joined: Callable[[Sequence[Any]], Any] | None = None
    room: bool = False


@final
class Lease:
    """A mark whether a call has consumed the buffers of a state. It alone changes in place. States that share buffers
    share a lease, and a copy has a new one."""

    consumed = False

    def require(self) -> None:
        """Refuse a state that a call has consumed.

        Raises:
            StateError: a call has.
        """
        if self.consumed:
            raise StateError("an earlier call has consumed this state, so its buffers may hold later tokens.",
                             where="state", remedy="Go on with the state that the call returned, or clone() or "
                             "select() the state before the call to use it twice.")

    def consume(self) -> None:
        """Consume the state for a call, even if the call then fails. With gradients on nothing is written in place, so
        the state may be used again.

        Raises:
            StateError: another call has consumed it.
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
               joined: Callable[[Sequence[Any]], Any] | None = None, room: bool = False,
               default: Any = dataclasses.MISSING) -> Any:
    """Declare a plain Python field of a `State`, the same for all rows; without a ``default`` it must be given."""
    return dataclasses.field(default=default,
                             metadata={"weft": FactField(saved, unsaved, most if room else joined, room)})


def most(rooms: Sequence[int | None]) -> int | None:
    """The largest number of tokens; None if one of them is None, whose buffers grow with each call."""
    known = [room for room in rooms if room is not None]
    return max(known) if len(known) == len(rooms) else None


def lease_field() -> Any:
    """Declare the `Lease` of a `State`'s buffers."""
    return dataclasses.field(default_factory=Lease, repr=False, compare=False)


def child_field() -> Any:
    """Declare a nested state, or a tuple of them, after fields that the functions above declare."""
    return dataclasses.field()
