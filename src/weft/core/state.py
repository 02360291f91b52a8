"""States: small frozen records of tensors, batch first, and the operations on them, which are written once.

A part declares its state as a frozen dataclass deriving from `State`. Every field is one of

* a tensor, declared with `tensor_field` (which dimension grows, what fills its padding, whether it keeps its dtype);
* a nested `State`, or a tuple of them;
* a plain Python fact, declared with `fact_field` (equal in all rows, never a tensor);
* a `Lease`, declared with `lease_field`, which records whether a call has consumed the state.

Every operation on a state besides `forward` is written over these declarations, here and in `weft.core.rows`, so that
no part implements row selection, concatenation, moving, saving or byte counts itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.compiling import require
from weft.core.errors import StateError
from weft.core.tree import (
    FactField,
    Join,
    Lease,
    Settle,
    TensorField,
    Tree,
    as_declared,
    child_field,
    fact_field,
    lease_field,
    leaves,
    map_together,
    tensor_field,
    walk,
)

__all__ = ["FactField", "Join", "Lease", "Settle", "State", "TensorField", "as_declared", "child_field", "concat",
           "fact_field", "lease_field", "leaves", "map_together", "pad_to", "restore", "state_arrays", "tensor_field",
           "walk"]

S = TypeVar("S", bound="State")


@dataclass(frozen=True)
class State(Tree):
    """Base of all states. Subclasses are frozen dataclasses whose fields are all constructor fields."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def map(self, function: Callable[[Tensor, TensorField], Tensor]) -> Self:
        """Apply ``function(tensor, declaration)`` to every tensor. A tensor that several parts of the state share is
        mapped once and stays shared. The result shares the lease: a call with either consumes both."""
        return map_together([self], lambda tensors, spec: function(tensors[0], spec), forks=False)

    def tensors(self) -> dict[str, tuple[Tensor, TensorField]]:
        """Every tensor with its declaration, by its dotted path (``layers.0.keys``)."""
        return {path: (tensor, spec) for path, tensor, spec in walk(self)}

    def batch(self) -> int:
        """The number of rows."""
        for _, tensor, _ in walk(self):
            return tensor.shape[0]
        raise StateError("this state holds no tensor, so it has no rows", where=type(self).__name__)

    def select(self, rows: Int64[Tensor, " rows"] | Sequence[int]) -> Self:
        """These rows in this order, repeats allowed (beam reordering, forks). The result shares no memory."""
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
        """The same values, cut from the autograd graph (truncated back-propagation). The result shares the lease."""
        return self.map(lambda tensor, _: tensor.detach())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move and cast; fields that keep their dtype, and integers, are only moved. The result shares the lease."""
        def move(tensor: Tensor, spec: TensorField) -> Tensor:
            keep = spec.keeps_dtype or not (tensor.is_floating_point() or tensor.is_complex())
            return tensor.to(device=device) if keep or dtype is None else tensor.to(device=device, dtype=dtype)

        return self.map(move)

    def nbytes(self) -> int:
        """Bytes of all tensors; shared ones, such as those of the clock, are counted once."""
        unique = {tensor.data_ptr() or id(tensor): tensor for _, tensor, _ in walk(self)}
        return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def concat(states: Sequence[S]) -> S:
    """Join the rows of several states of one model, padding fields that grow to the longest with their fill. Raises
    `StateError`: there are no states, they are of different models, or a call has consumed one."""
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
    """``tensor`` with ``dim`` lengthened to ``size``, or as it is if it is as long; new entries are ``fill``."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    return torch.cat([tensor, tensor.new_full(shape, fill)], dim=dim)


def state_arrays(state: State) -> dict[str, Tensor]:
    """The tensors of a state by path, for a file, and those of its facts that are saved, as one number for each row.
    `restore` is the inverse. Raises `StateError`: a call has consumed the state."""
    rows, copy = state.batch(), state.clone()
    facts = {path: torch.full((rows,), -1 if value is None else int(value))
             for path, (value, _) in _saved_facts(state).items()}
    return {**{path: tensor.detach().contiguous() for path, (tensor, _) in copy.tensors().items()}, **facts}


def restore(template: S, arrays: dict[str, Tensor]) -> S:
    """A state like ``template``, on its device, with the tensors and facts that `state_arrays` returned.

    Args:
        template: the ``init_state`` of the same model configuration.
        arrays: by path, read from a file.

    Raises:
        StateError: the names do not match, a dtype differs, or a shape differs in a dimension that does not grow.
    """
    expected, facts = template.tensors(), _saved_facts(template)
    missing, unknown = sorted(set(expected) - set(arrays)), sorted(set(arrays) - set(expected) - set(facts))
    if missing or unknown:
        raise StateError(f"the state has other tensors than this model's: missing {missing}, unknown {unknown}.",
                         where="restore", remedy="Load a state that the same model configuration wrote.")
    for path, (tensor, spec) in expected.items():
        _require_alike(path, tensor, arrays[path], spec)
    tensors, names = iter(list(expected)), iter(list(facts))

    def settle(values: list[Any], spec: FactField) -> Any:
        if spec.saved is None:
            return values[0]
        array = arrays.get(next(names))
        number = -1 if array is None or array.numel() == 0 else int(array[0])  # every row has the same
        return spec.unsaved if number < 0 else spec.saved(number)

    return map_together([template], lambda own, _spec: arrays[next(tensors)].to(own[0].device), forks=True,
                        settle=settle)


def _saved_facts(state: State) -> dict[str, tuple[Any, FactField]]:
    """The facts that are written to files, by path."""
    return {path: (value, spec) for path, value, spec in leaves(state)
            if isinstance(spec, FactField) and spec.saved is not None}


def _require_alike(path: str, expected: Tensor, tensor: Tensor, spec: TensorField) -> None:
    """Refuse a tensor of another dtype or shape, apart from rows, a growing dimension and what calls give."""
    # If calls give the dtype and the dimensions after the second, a template of two dimensions fixes neither.
    free, open_ended = {0, spec.grows}, spec.as_given and expected.dim() == 2
    fixed = 2 if open_ended else max(expected.dim(), tensor.dim())
    same = len(expected.shape[:fixed]) == len(tensor.shape[:fixed]) and all(
        a == b for dim, (a, b) in enumerate(zip(expected.shape[:fixed], tensor.shape, strict=False)) if dim not in free)
    if not same:
        raise StateError(f"shape {tuple(tensor.shape)} where this model keeps {tuple(expected.shape)}.", where=path,
                         remedy="Load a state that the same model configuration wrote.")
    if expected.dtype != tensor.dtype and not open_ended:
        raise StateError(f"dtype {tensor.dtype} where this state keeps {expected.dtype}.", where=path,
                         remedy="Start the template with the saved state's dtype, init_state(dtype=...), and cast what "
                         "was restored with State.to.")
