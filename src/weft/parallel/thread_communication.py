"""Differentiable communication of the processes that compute pieces of the same rows.

`HandedPieces` is what layers see of it (`weft.core.pieces`); the messages themselves are operators that autograd and
`torch.compile` take as one chain (`weft.parallel.collectives`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from weft.core.compiling import constant_to_compiler
from weft.core.pieces import Pieces
from weft.core.span import Span
from weft.core.tree import TensorField, Tree
from weft.parallel.collectives import gathered, received, sent

R = TypeVar("R")


@dataclass(frozen=True)
class Line:
    """The processes that compute the pieces of a row, in the order of the pieces.

    Attributes:
        group: its name; its ranks are the places of the pieces.
    """

    group: str
    place: int
    count: int


@dataclass(eq=False)
class Chain:
    """The communication of one call. ``thread``: what the last operator returned."""

    thread: Tensor


class HandedPieces(Pieces):
    """`Pieces` of connected processes.

    Args:
        ends, place, whole: as in `Pieces`.
    """

    def __init__(self, ends: Sequence[int], place: int, whole: Span, line: Line, chain: Chain) -> None:
        super().__init__(ends, place, whole)
        self._line, self._chain = line, chain

    @staticmethod
    def keeping() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        # What arrived is kept; sending is an operator of one number, which is kept so that nothing is sent again.
        contexts: Any = create_selective_checkpoint_contexts([gathered, received, sent])
        return contexts  # type: ignore[no-any-return]

    def in_turn(self, run: Callable[[Any], R], state: Any) -> R:
        out: Any = run(state if self.place == 0 else self._received(state))
        if self.place + 1 < self._line.count:
            self._send(out.state)
        result: R = out
        return result

    def each(self, *values: Tensor) -> list[tuple[Tensor, ...]]:
        flat = torch.cat([value.reshape(-1) for value in values])
        whole = self._called(gathered, flat, self._line.group, self._line.count)
        sizes = [value.numel() for value in values]
        return [tuple(part.view(value.shape) for part, value in zip(one.split(sizes), values, strict=True))
                for one in whole.unbind()]

    def _received(self, state: Any) -> Any:
        """The state of the process before, on the clock of this one's."""
        tensors = own_tensors(state, state.clock)
        sizes = [list(tensor.shape) for tensor in tensors]
        if sized_by_calls(state, state.clock):
            found = iter(self._receive([sum(map(len, sizes))], torch.int64).tolist())
            sizes = [[next(found) for _ in size] for size in sizes]
        arrived = [self._receive(size, tensor.dtype) for tensor, size in zip(tensors, sizes, strict=True)]
        return filled(state, iter(arrived), state.clock)

    def _send(self, state: Any) -> None:
        tensors, line = own_tensors(state, state.clock), self._line
        if sized_by_calls(state, state.clock):  # the next process knows no more than the number of dimensions
            sizes = [size for tensor in tensors for size in tensor.shape]
            tensors.insert(0, torch.tensor(sizes, device=self._chain.thread.device))
        for tensor in tensors:
            self._chain.thread = sent(self._chain.thread, tensor, line.group, line.place + 1)

    def _receive(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self._called(received, list(size), dtype, self._line.group, self._line.place - 1)

    def _called(self, operator: Any, *arguments: Any) -> Tensor:
        """The result of an operator of the chain besides the thread."""
        self._chain.thread, found = operator(self._chain.thread, *arguments)
        result: Tensor = found
        return result


def own_tensors(state: Any, clock: Any) -> list[Tensor]:
    """The tensors of a layer's state, those of its clock left out."""
    found: list[Tensor] = []
    for name in names_of(type(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            found.append(value)
        else:
            for part in parts_in(value, clock):
                found.extend(own_tensors(part, clock))
    return found


def filled(state: Any, tensors: Iterator[Tensor], clock: Any) -> Any:
    """The state with other tensors, in the order of `own_tensors`."""
    changes: dict[str, Any] = {}
    for name in names_of(type(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            changes[name] = next(tensors)
        elif isinstance(value, tuple):
            changes[name] = tuple(filled(item, tensors, clock) if parts_in(item, clock) else item for item in value)
        elif parts_in(value, clock):
            changes[name] = filled(value, tensors, clock)
    return dataclasses.replace(state, **changes)


def sized_by_calls(state: Any, clock: Any) -> bool:
    """Whether tensors of a state can have other shapes on another process."""
    inner = [part for name in names_of(type(state)) for part in parts_in(getattr(state, name), clock)]
    return has_open_sizes(type(state)) or any(sized_by_calls(part, clock) for part in inner)


def parts_in(value: Any, clock: Any) -> list[Any]:
    """The states in a field of a state."""
    items = value if isinstance(value, tuple) else (value,)
    return [item for item in items if isinstance(item, Tree) and item is not clock]


@constant_to_compiler
def names_of(kind: type[Tree]) -> tuple[str, ...]:
    """The names of the fields of a state."""
    return tuple(own.name for own in dataclasses.fields(kind))


@constant_to_compiler
def has_open_sizes(kind: type[Tree]) -> bool:
    """Whether a field of a state is a tensor whose shape depends on calls."""
    specs = (own.metadata.get("weft") for own in dataclasses.fields(kind))
    return any(isinstance(spec, TensorField) and (spec.grows is not None or spec.as_given) for spec in specs)
