"""States: small frozen records of tensors, batch first, and the operations on them, written once.

A part declares its state as a frozen dataclass deriving from `State`. Every field is one of

* a tensor, declared with `tensor_field` (which dimension grows, what fills its padding, whether it keeps its dtype);
* a nested `State`, or a tuple of them;
* a plain Python fact, declared with `fact_field` (equal in all rows, never a tensor);
* a `Lease`, declared with `lease_field`, which says whether a call has consumed the state.

Everything that happens to a state besides `forward` is written here over those declarations, so a part never writes
its own row selection, concatenation, move, save or byte count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar, final

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.checks import require
from weft.core.errors import StateError

S = TypeVar("S", bound="State")


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
    """

    grows: int | None = None
    fill: float | int | bool = 0
    keeps_dtype: bool = False
    as_given: bool = False


@dataclass(frozen=True)
class FactField:
    """What a state promises about one plain Python field.

    Attributes:
        saved: the type as which it is written to files, whole numbers being 0 or more; None: it is not written, since
            an ``init_state`` of the same model knows it.
        unsaved: what it is where no number of its own was written.
        joined: how the fact of joined states follows from theirs; None: they must agree.
    """

    saved: type[bool] | type[int] | None = None
    unsaved: Any = None
    joined: Callable[[Sequence[Any]], Any] | None = None


@final
class Lease:
    """Whether a call has consumed the buffers of a state. The only thing about a state that changes in place: what
    shares buffers shares the lease, and what was copied has one of its own."""

    def __init__(self) -> None:
        self.consumed = False

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
        self.require()
        if not torch.is_grad_enabled():
            self.consumed = True


def tensor_field(*, grows: int | None = None, fill: float | int | bool = 0, keeps_dtype: bool = False,
                 as_given: bool = False) -> Any:
    """Declare a tensor field of a `State` (batch is dimension 0)."""
    return dataclasses.field(metadata={"weft": TensorField(grows, fill, keeps_dtype, as_given)})


def fact_field(*, saved: type[bool] | type[int] | None = None, unsaved: Any = None,
               joined: Callable[[Sequence[Any]], Any] | None = None) -> Any:
    """Declare a plain Python field of a `State`, the same for all rows."""
    return dataclasses.field(metadata={"weft": FactField(saved, unsaved, joined)})


def lease_field() -> Any:
    """Declare the `Lease` of a `State`'s buffers."""
    return dataclasses.field(default_factory=Lease, repr=False, compare=False)


def child_field() -> Any:
    """Declare a nested state, or a tuple of them, after fields that were declared by the functions above."""
    return dataclasses.field()


@dataclass(frozen=True)
class State:
    """Base of all states. Subclasses are frozen dataclasses whose fields are all constructor fields."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    # The operations below are methods for convenience; they are written once, over the declarations.

    def map(self, function: Callable[[Tensor, TensorField], Tensor]) -> Self:
        """Apply ``function(tensor, declaration)`` to every tensor. A tensor that stands in the tree several times is
        mapped once and stays shared. The result takes the state's place: a call consumes both."""
        return _map_together([self], lambda tensors, spec: function(tensors[0], spec), forks=False)

    def tensors(self) -> dict[str, tuple[Tensor, TensorField]]:
        """Every tensor by its dotted path (``layers.0.keys``)."""
        return {path: (tensor, spec) for path, tensor, spec in _walk(self)}

    def batch(self) -> int:
        """The number of rows."""
        for _, tensor, _ in _walk(self):
            return tensor.shape[0]
        raise StateError("this state holds no tensor, so it has no rows", where=type(self).__name__)

    def select(self, rows: Int64[Tensor, " rows"] | Sequence[int]) -> Self:
        """The given rows, in that order, repeats allowed (beam reordering, forks). The result shares no memory."""
        chosen, count = torch.as_tensor(rows, dtype=torch.int64), self.batch()
        require((chosen >= 0) & (chosen < count), StateError, f"a row outside a state of {count} rows.",
                where="State.select", remedy=f"Give rows from 0 to {count - 1}.")

        def pick(tensor: Tensor, spec: TensorField) -> Tensor:
            return tensor.index_select(0, chosen.to(tensor.device))

        return self._forked(pick)

    def assign(self, rows: Int64[Tensor, " rows"] | Sequence[int], other: Self) -> Self:
        """A copy in which ``rows`` hold the rows of ``other`` (continuous batching), padded where sizes differ."""
        count, wanted = self.batch(), torch.as_tensor(rows).tolist()
        if len(wanted) != other.batch():
            raise StateError(f"{len(wanted)} rows for a state of {other.batch()} rows", where="State.assign",
                             remedy="Give one row for each row of the other state.")
        source = list(range(count))
        for place, row in enumerate(wanted):
            if not 0 <= row < count:
                raise StateError(f"row {row} of a state of {count} rows", where="State.assign",
                                 remedy=f"Give rows from 0 to {count - 1}.")
            source[row] = count + place
        return concat([self, other]).select(source)

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Consecutive groups of rows."""
        if sum(sizes) != self.batch():
            raise StateError(f"sizes {list(sizes)} do not add up to {self.batch()} rows", where="State.split",
                             remedy="Give one size for each group, adding up to the batch.")
        pieces, start = [], 0
        for size in sizes:
            pieces.append(self.select(range(start, start + size)))
            start += size
        return pieces

    def clone(self) -> Self:
        """A copy that shares no memory: a state passed to ``forward`` is consumed, so fork it first."""
        return self._forked(lambda tensor, _: tensor.clone())

    def _forked(self, copy: Callable[[Tensor, TensorField], Tensor]) -> Self:
        return _map_together([self], lambda tensors, spec: copy(tensors[0], spec), forks=True)

    def detach(self) -> Self:
        """The same values, cut from the autograd graph (truncated back-propagation). It takes the state's place."""
        return self.map(lambda tensor, _: tensor.detach())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move and cast; fields that keep their dtype, and integers, are only moved. It takes the state's place."""
        def move(tensor: Tensor, spec: TensorField) -> Tensor:
            keep = spec.keeps_dtype or not (tensor.is_floating_point() or tensor.is_complex())
            return tensor.to(device=device) if keep or dtype is None else tensor.to(device=device, dtype=dtype)

        return self.map(move)

    def nbytes(self) -> int:
        """Bytes held; what is shared, such as the clock, is counted once."""
        unique = {tensor.data_ptr() or id(tensor): tensor for _, tensor, _ in _walk(self)}
        return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def concat(states: Sequence[S]) -> S:
    """Put the rows of several states of one model into one, padding what grows to the longest with its fill."""
    if not states:
        raise StateError("no states to concatenate", where="concat", remedy="Give at least one.")

    def join(tensors: list[Tensor], spec: TensorField) -> Tensor:
        if spec.as_given and len({tensor.shape[2:] for tensor in tensors}) > 1:
            raise StateError("states that were given different numbers of coordinates a token.", where="concat",
                             remedy="Join states whose calls gave coordinates of one shape.")
        if spec.grows is not None:
            longest = max(tensor.shape[spec.grows] for tensor in tensors)
            tensors = [pad_to(tensor, spec.grows, longest, spec.fill) for tensor in tensors]
        return torch.cat(tensors, dim=0)

    return _map_together(list(states), join, forks=True)


def pad_to(tensor: Tensor, dim: int, size: int, fill: float | int | bool) -> Tensor:
    """``tensor`` with ``dim`` lengthened to ``size``; the new entries hold ``fill``."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_full(shape, fill)], dim=dim)


def reserved(state: S, slots: int) -> S:
    """``state`` with room for ``slots`` tokens in what grows, so that steps write in place instead of copying. Only
    for states that were started without a capacity, whose room is what their tensors have."""
    def lengthen(tensor: Tensor, spec: TensorField) -> Tensor:
        return tensor if spec.grows is None else pad_to(tensor, spec.grows, slots, spec.fill)

    return state.map(lengthen)


def state_arrays(state: State) -> dict[str, Tensor]:
    """The tensors of a state by path, and the facts that are saved, as a number for each row; to be written to a file.
    `restore` reads them back.

    Raises:
        StateError: a call has consumed the state.
    """
    rows, kept = state.batch(), state.clone()
    facts = {path: torch.full((rows,), -1 if value is None else int(value))
             for path, (value, _) in _saved_facts(state).items()}
    return {**{path: tensor.detach().contiguous() for path, (tensor, _) in kept.tensors().items()}, **facts}


def restore(template: S, arrays: dict[str, Tensor]) -> S:
    """A state like ``template`` (an ``init_state`` of the same model) with the tensors and the facts read from a file.

    Raises:
        StateError: when the names do not match, a dtype differs, or a shape differs in a dimension that does not grow.
    """
    wanted, facts = template.tensors(), _saved_facts(template)
    missing, unknown = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted) - set(facts))
    if missing or unknown:
        raise StateError(f"the state has other tensors than this model's: missing {missing}, unknown {unknown}.",
                         where="restore", remedy="Load a state that the same model configuration wrote.")
    for path, (tensor, spec) in wanted.items():
        _require_alike(path, tensor, arrays[path], spec)
    tensors, names = iter(list(wanted)), iter(list(facts))

    def settle(values: list[Any], spec: FactField) -> Any:
        return values[0] if spec.saved is None else _read_fact(arrays.get(next(names)), spec)

    return _map_together([template], lambda _tensors, _spec: arrays[next(tensors)], forks=True, settle=settle)


def _read_fact(array: Tensor | None, spec: FactField) -> Any:
    """A fact from the number that every row holds; ``unsaved`` where there is none, as in files of earlier versions."""
    number = -1 if array is None or array.numel() == 0 else int(array[0])
    return spec.unsaved if number < 0 or spec.saved is None else spec.saved(number)


def _require_alike(path: str, wanted: Tensor, given: Tensor, spec: TensorField) -> None:
    free, known = {0, spec.grows}, 2 if spec.as_given else max(wanted.dim(), given.dim())
    same = len(wanted.shape[:known]) == len(given.shape[:known]) and all(
        a == b for dim, (a, b) in enumerate(zip(wanted.shape[:known], given.shape, strict=False)) if dim not in free)
    if not same:
        raise StateError(f"shape {tuple(given.shape)} where this model keeps {tuple(wanted.shape)}.", where=path,
                         remedy="Load a state that the same model configuration wrote.")
    if wanted.dtype != given.dtype and not spec.as_given:
        raise StateError(f"dtype {given.dtype} where this state keeps {wanted.dtype}.", where=path,
                         remedy="Start the template with the saved state's dtype, init_state(dtype=...), and cast what "
                         "was restored with State.to.")


def _fields(state: State) -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(state):
        yield field.name, getattr(state, field.name), field.metadata.get("weft")


def _leaves(state: State, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Every field that is no state, once, by its path and with its declaration, in the order in which `_map_together`
    visits them; a shared part stands at its first place."""
    seen = set() if seen is None else seen
    if id(state) in seen:
        return
    seen.add(id(state))
    for name, value, spec in _fields(state):
        path = f"{prefix}{name}"
        if isinstance(value, State):
            yield from _leaves(value, f"{path}.", seen)
        elif isinstance(value, tuple) and not isinstance(spec, FactField):
            for index, item in enumerate(value):
                if isinstance(item, State):
                    yield from _leaves(item, f"{path}.{index}.", seen)
        else:
            yield path, value, spec


def _walk(state: State) -> Iterator[tuple[str, Tensor, TensorField]]:
    """Every tensor."""
    return ((path, value, spec) for path, value, spec in _leaves(state) if isinstance(value, Tensor))


def _saved_facts(state: State) -> dict[str, tuple[Any, FactField]]:
    """The facts that are written to files, by path."""
    return {path: (value, spec) for path, value, spec in _leaves(state)
            if isinstance(spec, FactField) and spec.saved is not None}


Join: TypeAlias = Callable[[list[Tensor], TensorField], Tensor]
Settle: TypeAlias = Callable[[list[Any], FactField], Any]


def _map_together(states: list[S], join: Join, *, forks: bool, settle: Settle | None = None) -> S:
    """Walk several states of one shape together. Results are remembered by the tensors they came from, so that a
    clock that all layers share is still one clock afterwards.

    Args:
        join: a tensor from theirs.
        forks: the result shares no memory with the states, so it has leases of its own.
        settle: a fact from theirs; None: as it declares.
    """
    done: dict[tuple[int, ...], State] = {}

    def visit(group: list[Any]) -> Any:
        _require_same_kind(group)
        key = tuple(id(member) for member in group)
        if key not in done:
            done[key] = dataclasses.replace(group[0], **dict(_joined(group)))
        return done[key]

    def _joined(group: list[State]) -> Iterator[tuple[str, Any]]:
        for name, value, spec in _fields(group[0]):
            values = [getattr(member, name) for member in group]
            if isinstance(value, Tensor):
                yield name, join(values, spec)
            elif isinstance(value, State):
                yield name, visit(values)
            elif isinstance(value, Lease):
                yield name, _fork(values) if forks else value
            elif isinstance(value, tuple) and not isinstance(spec, FactField):
                yield name, tuple(visit(list(items)) if isinstance(items[0], State) else items[0]
                                  for items in zip(*values, strict=True))
            elif isinstance(spec, FactField) and settle is not None:
                yield name, settle(values, spec)
            elif isinstance(spec, FactField) and spec.joined is not None:
                yield name, spec.joined(values)
            elif any(other != value for other in values):
                raise StateError(f"{name} is {values} in states that should be joined",
                                 where=type(group[0]).__name__, remedy="Join only states of one model.")

    result: S = visit(states)
    return result


def _fork(leases: Sequence[Lease]) -> Lease:
    for lease in leases:
        lease.require()
    return Lease()


def _require_same_kind(group: list[Any]) -> None:
    kinds = {type(member) for member in group}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise StateError(f"states of different kinds: {names}.", where="concat",
                         remedy="Join only states of one model.")
