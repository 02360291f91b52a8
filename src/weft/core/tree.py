"""States as trees: walks over the fields of one state, or of several states of one structure together.

All layers of a model share one clock, so that such a tree contains it several times. A walk visits it once, and the
result of a walk shares what the walked states share.

Declarations of the fields of a state: how each grows, what fills it, how it is joined and saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

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


class Lease:
    """A mark whether a call has consumed the buffers of a state. It alone changes in place. States that share buffers
    share a lease, and a copy has a new one."""

    consumed = False

    def require(self) -> None:
        """Refuse a state that a call has consumed. Raises `StateError`: a call has."""
        if self.consumed:
            raise StateError("an earlier call has consumed this state, so its buffers may hold later tokens.",
                             where="state", remedy="Go on with the state that the call returned, or clone() or "
                             "select() the state before the call to use it twice.")

    def consume(self) -> None:
        """Consume the state for a call, even if the call then fails. With gradients on nothing is written in place, so
        the state may be used again. Raises `StateError`: another call has consumed it."""
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


@dataclass(frozen=True)
class Tree:
    """A frozen record of tensors, plain facts, leases and further records: the form of a `weft.core.state.State`."""


T = TypeVar("T", bound=Tree)


def _fields(state: Tree) -> list[tuple[str, Any, Any]]:
    kind: Any = type(state)
    return [(name, getattr(state, name), spec) for name, spec in _declared(kind)]


@cache
def _declared(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The names of a state's fields and their declarations, which all states of a class share."""
    return tuple((field.name, field.metadata.get("weft")) for field in dataclasses.fields(kind))


def leaves(state: Tree) -> list[tuple[str, Any, Any]]:
    """Every field that is not a state, once, with its path and declaration, in the order in which `map_together` visits
    them. The fields of a shared part have the path at which it comes first."""
    found, seen = list[tuple[str, Any, Any]](), set[int]()

    def visit(tree: Tree, prefix: str) -> None:
        if id(tree) in seen:
            return
        seen.add(id(tree))
        kind: Any = type(tree)
        for name, spec in _declared(kind):
            value, path = getattr(tree, name), f"{prefix}{name}"
            if isinstance(value, Tree):
                visit(value, f"{path}.")
            elif isinstance(value, tuple) and not isinstance(spec, FactField):
                for index, item in enumerate(value):
                    if isinstance(item, Tree):
                        visit(item, f"{path}.{index}.")
            else:
                found.append((path, value, spec))

    visit(state, "")
    return found


def walk(state: Tree) -> list[tuple[str, Tensor, TensorField]]:
    """Every tensor, once, with its path and declaration."""
    return [(path, value, spec) for path, value, spec in leaves(state) if isinstance(value, Tensor)]


Join: TypeAlias = Callable[[list[Tensor], TensorField], Tensor]
"""A function from the tensors of one field, one of each state, to a tensor."""
Settle: TypeAlias = Callable[[list[Any], FactField], Any]
"""A function from the facts of one field, one of each state, to a fact."""


def map_together(states: list[T], join: Join, *, forks: bool, settle: Settle | None = None) -> T:
    """Walk several states of one structure together. Results are stored by the parts that they come from, so that a
    clock that all layers share is still one clock afterwards.

    Args:
        states: of one model.
        join: makes a tensor from theirs.
        forks: whether the result shares no memory with the states and so gets new leases.
        settle: makes a fact from theirs; None: as its declaration states. Facts that declare no joining must agree.

    Raises:
        StateError: the states are of different models, or a call has consumed one of them.
    """
    done: dict[tuple[int, ...], Tree] = {}

    def visit(group: list[Any], path: str) -> Any:
        _require_one(dict.fromkeys(type(member).__name__ for member in group), path.rstrip("."), "a {}")
        key = tuple(id(member) for member in group)
        if key not in done:
            done[key] = dataclasses.replace(group[0], **dict(_joined(group, path)))
        return done[key]

    def _joined(group: list[Tree], path: str) -> Iterator[tuple[str, Any]]:
        for name, value, spec in _fields(group[0]):
            values, place = [getattr(member, name) for member in group], f"{path}{name}"
            if isinstance(spec, TensorField):
                _require_alike_tensors(values, spec, place)
            if isinstance(value, Tensor):
                yield name, join(values, spec)
            elif isinstance(value, Tree):
                yield name, visit(values, f"{place}.")
            elif isinstance(value, Lease):
                yield name, _fork(values) if forks else value
            elif isinstance(value, tuple) and not isinstance(spec, FactField):
                _require_one({len(items) for items in values}, place, "{} layers")
                yield name, tuple(visit(list(items), f"{place}.{index}.") if isinstance(items[0], Tree) else items[0]
                                  for index, items in enumerate(zip(*values, strict=True)))
            else:
                if len(values) > 1 and (not isinstance(spec, FactField) or spec.joined is None):
                    _require_one(dict.fromkeys(values), place, "{!r}")
                if isinstance(spec, FactField):
                    yield name, (settle or as_declared)(values, spec)

    result: T = visit(states, "")
    return result


def as_declared(values: list[Any], spec: FactField) -> Any:
    """The fact of joined states, as its declaration states."""
    return values[0] if spec.joined is None else spec.joined(values)


def _fork(leases: Sequence[Lease]) -> Lease:
    """A new lease, for a copy of states that no call has consumed."""
    for lease in leases:
        lease.require()
    return Lease()


def _require_alike_tensors(values: list[Tensor | None], spec: TensorField, path: str) -> None:
    """Refuse tensors that differ in dimensions which depend on the model alone."""
    if len(values) == 1:
        return
    free = {0, spec.grows}
    shapes = [None if value is None else tuple("any" if dim in free else size for dim, size in
                                               enumerate(value.shape[:2] if spec.as_given else value.shape))
              for value in values]
    _require_one(dict.fromkeys(shapes), path, "shape {}")


def _require_one(values: Collection[Any], path: str, words: str) -> None:
    """Refuse states that differ in a value which is the same in all states of one model."""
    if len(values) > 1:
        differ = " and ".join(words.format(each) for each in values)
        raise StateError(f"the states are of different models: {differ}.", where=path or "state",
                         remedy="Bring together only states that one model's init_state began.")
