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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, TypeAlias, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.checks import require
from weft.core.errors import StateError
from weft.core.fields import FactField, Lease, TensorField, child_field, fact_field, lease_field, tensor_field

__all__ = ["FactField", "Join", "Lease", "Settle", "State", "TensorField", "as_declared", "child_field", "concat",
           "fact_field", "lease_field", "leaves", "map_together", "pad_to", "restore", "state_arrays", "tensor_field",
           "walk"]

S = TypeVar("S", bound="State")


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
        return map_together([self], lambda tensors, spec: function(tensors[0], spec), forks=False)

    def tensors(self) -> dict[str, tuple[Tensor, TensorField]]:
        """Every tensor by its dotted path (``layers.0.keys``)."""
        return {path: (tensor, spec) for path, tensor, spec in walk(self)}

    def batch(self) -> int:
        """The number of rows."""
        for _, tensor, _ in walk(self):
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
        return map_together([self], lambda tensors, spec: copy(tensors[0], spec), forks=True)

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
        unique = {tensor.data_ptr() or id(tensor): tensor for _, tensor, _ in walk(self)}
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

    return map_together(list(states), join, forks=True)


def pad_to(tensor: Tensor, dim: int, size: int, fill: float | int | bool) -> Tensor:
    """``tensor`` with ``dim`` lengthened to ``size``; the new entries hold ``fill``."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_full(shape, fill)], dim=dim)


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

    return map_together([template], lambda _tensors, _spec: arrays[next(tensors)], forks=True, settle=settle)


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


def _fields(state: State) -> list[tuple[str, Any, Any]]:
    kind: Any = type(state)
    return [(name, getattr(state, name), spec) for name, spec in _declared(kind)]


@cache
def _declared(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The names of a state's fields and what it declares of them: the same for all of a class."""
    return tuple((field.name, field.metadata.get("weft")) for field in dataclasses.fields(kind))


def leaves(state: State, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any, Any]]:
    """Every field that is no state, once, by its path and with its declaration, in the order in which `map_together`
    visits them; a shared part stands at its first place."""
    seen = set() if seen is None else seen
    if id(state) in seen:
        return
    seen.add(id(state))
    for name, value, spec in _fields(state):
        path = f"{prefix}{name}"
        if isinstance(value, State):
            yield from leaves(value, f"{path}.", seen)
        elif isinstance(value, tuple) and not isinstance(spec, FactField):
            for index, item in enumerate(value):
                if isinstance(item, State):
                    yield from leaves(item, f"{path}.{index}.", seen)
        else:
            yield path, value, spec


def walk(state: State) -> Iterator[tuple[str, Tensor, TensorField]]:
    """Every tensor."""
    return ((path, value, spec) for path, value, spec in leaves(state) if isinstance(value, Tensor))


def _saved_facts(state: State) -> dict[str, tuple[Any, FactField]]:
    """The facts that are written to files, by path."""
    return {path: (value, spec) for path, value, spec in leaves(state)
            if isinstance(spec, FactField) and spec.saved is not None}


Join: TypeAlias = Callable[[list[Tensor], TensorField], Tensor]
Settle: TypeAlias = Callable[[list[Any], FactField], Any]


def map_together(states: list[S], join: Join, *, forks: bool, settle: Settle | None = None) -> S:
    """Walk several states of one shape together. Results are remembered by the tensors they came from, so that a
    clock that all layers share is still one clock afterwards.

    Args:
        join: a tensor from theirs.
        forks: the result shares no memory with the states, so it has leases of its own.
        settle: a fact from theirs; None: as it declares. Facts that say nothing of joining agree.

    Raises:
        StateError: the states are of different models, or a call has consumed one of them.
    """
    done: dict[tuple[int, ...], State] = {}

    def visit(group: list[Any], path: str) -> Any:
        _require_same_kind(group, path)
        key = tuple(id(member) for member in group)
        if key not in done:
            done[key] = dataclasses.replace(group[0], **dict(_joined(group, path)))
        return done[key]

    def _joined(group: list[State], path: str) -> Iterator[tuple[str, Any]]:
        for name, value, spec in _fields(group[0]):
            values, place = [getattr(member, name) for member in group], f"{path}{name}"
            if isinstance(spec, TensorField):
                _require_alike_tensors(values, spec, place)
            if isinstance(value, Tensor):
                yield name, join(values, spec)
            elif isinstance(value, State):
                yield name, visit(values, f"{place}.")
            elif isinstance(value, Lease):
                yield name, _fork(values) if forks else value
            elif isinstance(value, tuple) and not isinstance(spec, FactField):
                _require_one({len(items) for items in values}, place, "{} layers")
                yield name, tuple(visit(list(items), f"{place}.{index}.") if isinstance(items[0], State) else items[0]
                                  for index, items in enumerate(zip(*values, strict=True)))
            else:
                if len(values) > 1 and (not isinstance(spec, FactField) or spec.joined is None):
                    _require_one(dict.fromkeys(values), place, "{!r}")
                if isinstance(spec, FactField):
                    yield name, (settle or as_declared)(values, spec)

    result: S = visit(states, "")
    return result


def as_declared(values: list[Any], spec: FactField) -> Any:
    """The fact of joined states."""
    return values[0] if spec.joined is None else spec.joined(values)


def _fork(leases: Sequence[Lease]) -> Lease:
    for lease in leases:
        lease.require()
    return Lease()


def _require_same_kind(group: list[Any], path: str) -> None:
    if len(group) > 1:
        _require_one(dict.fromkeys(type(member).__name__ for member in group), path.rstrip("."), "a {}")


def _require_alike_tensors(values: list[Tensor | None], spec: TensorField, path: str) -> None:
    """Numbers of dimensions and sizes agree where they depend on the model alone."""
    if len(values) == 1:
        return
    free = {0, spec.grows}
    shapes = [None if value is None else tuple("any" if dim in free else size for dim, size in
                                               enumerate(value.shape[:2] if spec.as_given else value.shape))
              for value in values]
    _require_one(dict.fromkeys(shapes), path, "shape {}")


def _require_one(found: Collection[Any], path: str, words: str) -> None:
    """Refuse states that differ in what one model's states agree in."""
    if len(found) > 1:
        differ = " and ".join(words.format(each) for each in found)
        raise StateError(f"the states are of different models: {differ}.", where=path or "state",
                         remedy="Bring together only states that one model's init_state began.")
