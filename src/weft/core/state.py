"""States: small frozen records of tensors, batch first, and the operations on them, written once.

A part declares its state as a frozen dataclass deriving from `State`. Every field is one of

* a tensor, declared with `tensor_field` (which dimension grows, what fills its padding, whether it keeps its dtype);
* a nested `State`, or a tuple of them;
* a plain Python fact, declared with `fact_field` (equal in all rows, never a tensor).

Everything that happens to a state besides `forward` is written here over those declarations, so a part never writes
its own row selection, concatenation, move, save or byte count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

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
    """

    grows: int | None = None
    fill: float | int | bool = 0
    keeps_dtype: bool = False


def tensor_field(*, grows: int | None = None, fill: float | int | bool = 0, keeps_dtype: bool = False) -> Any:
    """Declare a tensor field of a `State` (batch is dimension 0)."""
    return dataclasses.field(metadata={"weft": TensorField(grows, fill, keeps_dtype)})


def fact_field() -> Any:
    """Declare a plain Python field of a `State`, the same for all rows."""
    return dataclasses.field(metadata={"weft": "fact"})


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
        mapped once and stays shared."""
        return _map_together([self], lambda tensors, spec: function(tensors[0], spec))

    def tensors(self) -> dict[str, tuple[Tensor, TensorField]]:
        """Every tensor by its dotted path (``layers.0.keys``)."""
        return {path: (tensor, spec) for path, tensor, spec in _walk(self, "")}

    def batch(self) -> int:
        """The number of rows."""
        for _, tensor, _ in _walk(self, ""):
            return tensor.shape[0]
        raise StateError("this state holds no tensor, so it has no rows", where=type(self).__name__)

    def select(self, rows: Int64[Tensor, " rows"] | Sequence[int]) -> Self:
        """The given rows, in that order, repeats allowed (beam reordering, forks). The result shares no memory."""
        chosen, count = torch.as_tensor(rows, dtype=torch.int64), self.batch()
        require((chosen >= 0) & (chosen < count), StateError, f"a row outside a state of {count} rows.",
                where="State.select", remedy=f"Give rows from 0 to {count - 1}.")

        def pick(tensor: Tensor, spec: TensorField) -> Tensor:
            return tensor.index_select(0, chosen.to(tensor.device))

        return self.map(pick)

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
        return self.map(lambda tensor, _: tensor.clone())

    def detach(self) -> Self:
        """The same values, cut from the autograd graph (truncated back-propagation)."""
        return self.map(lambda tensor, _: tensor.detach())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move and cast; fields that keep their dtype, and integers, are only moved."""
        def move(tensor: Tensor, spec: TensorField) -> Tensor:
            keep = spec.keeps_dtype or not (tensor.is_floating_point() or tensor.is_complex())
            return tensor.to(device=device) if keep or dtype is None else tensor.to(device=device, dtype=dtype)

        return self.map(move)

    def nbytes(self) -> int:
        """Bytes held; what is shared, such as the clock, is counted once."""
        unique = {tensor.data_ptr() or id(tensor): tensor for _, tensor, _ in _walk(self, "")}
        return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def concat(states: Sequence[S]) -> S:
    """Put the rows of several states of one model into one, padding what grows to the longest with its fill."""
    if not states:
        raise StateError("no states to concatenate", where="concat", remedy="Give at least one.")

    def join(tensors: list[Tensor], spec: TensorField) -> Tensor:
        if spec.grows is not None:
            longest = max(tensor.shape[spec.grows] for tensor in tensors)
            tensors = [pad_to(tensor, spec.grows, longest, spec.fill) for tensor in tensors]
        return torch.cat(tensors, dim=0)

    return _map_together(list(states), join)


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
    """The tensors of a state by path, to be written to a file; `restore` reads them back."""
    return {path: tensor.detach().contiguous().clone() for path, (tensor, _) in state.tensors().items()}


def restore(template: S, arrays: dict[str, Tensor]) -> S:
    """A state like ``template`` (an ``init_state`` of the same model) with the tensors read from a file.

    Raises:
        StateError: when the names do not match, or a shape differs in a dimension that does not grow.
    """
    wanted = template.tensors()
    missing, unknown = sorted(set(wanted) - set(arrays)), sorted(set(arrays) - set(wanted))
    if missing or unknown:
        raise StateError(f"the state has other tensors than this model's: missing {missing}, unknown {unknown}.",
                         where="restore", remedy="Load a state that the same model configuration wrote.")
    for path, (tensor, spec) in wanted.items():
        _require_alike(path, tensor, arrays[path], spec)
    by_path = iter(list(wanted))
    return template.map(lambda _tensor, _spec: arrays[next(by_path)])


def _require_alike(path: str, wanted: Tensor, given: Tensor, spec: TensorField) -> None:
    free = {0, spec.grows}
    same = wanted.dim() == given.dim() and all(
        a == b for dim, (a, b) in enumerate(zip(wanted.shape, given.shape, strict=True)) if dim not in free)
    if not same:
        raise StateError(f"shape {tuple(given.shape)} where this model keeps {tuple(wanted.shape)}.", where=path,
                         remedy="Load a state that the same model configuration wrote.")


def _fields(state: State) -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(state):
        yield field.name, getattr(state, field.name), field.metadata.get("weft")


def _walk(state: State, prefix: str, seen: set[int] | None = None) -> Iterator[tuple[str, Tensor, TensorField]]:
    """Every tensor once, in the order in which `State.map` visits them; a shared part stands at its first place."""
    seen = set() if seen is None else seen
    if id(state) in seen:
        return
    seen.add(id(state))
    for name, value, spec in _fields(state):
        path = f"{prefix}{name}"
        if isinstance(value, Tensor):
            yield path, value, spec
        elif isinstance(value, State):
            yield from _walk(value, f"{path}.", seen)
        elif isinstance(value, tuple) and spec != "fact":
            for index, item in enumerate(value):
                if isinstance(item, State):
                    yield from _walk(item, f"{path}.{index}.", seen)


def _map_together(states: list[S], join: Callable[[list[Tensor], TensorField], Tensor]) -> S:
    """Walk several states of one shape together. Results are remembered by the tensors they came from, so that a
    clock that all layers share is still one clock afterwards."""
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
            elif isinstance(value, tuple) and spec != "fact":
                yield name, tuple(visit(list(items)) if isinstance(items[0], State) else items[0]
                                  for items in zip(*values, strict=True))
            elif any(other != value for other in values):
                raise StateError(f"{name} is {values} in states that should be joined",
                                 where=type(group[0]).__name__, remedy="Join only states of one model.")

    result: S = visit(states)
    return result


def _require_same_kind(group: list[Any]) -> None:
    kinds = {type(member) for member in group}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise StateError(f"states of different kinds: {names}.", where="concat",
                         remedy="Join only states of one model.")
