"""Differentiable communication of the processes that compute pieces of the same rows.

`HandedPieces` is what layers see of it (`weft.core.pieces`); the messages themselves are operators that autograd and
`torch.compile` take as one chain (`weft.parallel.messages`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor

from weft.core.compiling import unseen_by_compiler
from weft.core.fields import TensorField
from weft.core.pieces import Pieces
from weft.core.ticks import Ticks
from weft.core.tree import Tree, declared
from weft.parallel.messages import gathered, group_named, received, sent

R = TypeVar("R")


@final
@dataclass(frozen=True)
class Line:
    """The processes that compute the pieces of a row, in the order of the pieces.

    Attributes:
        group: its name; its ranks are the places of the pieces.
        place: of this process.
        count: of processes.
    """

    group: str
    place: int
    count: int

    @unseen_by_compiler
    def send_shapes(self, tensors: Sequence[Tensor]) -> None:
        """Send the shapes of tensors to the next process, which knows how many dimensions they have."""
        sizes = torch.tensor([size for each in tensors for size in each.shape])
        dist.send(sizes, group=group_named(self.group), group_dst=self.place + 1)

    @unseen_by_compiler
    def receive_shapes(self, templates: Sequence[Tensor]) -> list[list[int]]:
        """The shapes of the tensors of the process before, with as many dimensions as the templates have."""
        sizes = torch.empty(sum(each.dim() for each in templates), dtype=torch.int64)
        dist.recv(sizes, group=group_named(self.group), group_src=self.place - 1)
        found = iter(sizes.tolist())
        return [[next(found) for _ in each.shape] for each in templates]


@final
@dataclass(eq=False)
class Chain:
    """The communication of one call.

    Attributes:
        thread: what the last operator returned.
        records: for every layer's state, by identity, what the layer received, with whether that has a gradient; None
            where no layer is run again.
    """

    thread: Tensor
    records: dict[int, list[list[tuple[Tensor, bool]]]] | None


@final
class HandedPieces(Pieces):
    """`Pieces` of connected processes.

    Args:
        ends, place, ticks: as in `Pieces`.
        line: the processes.
        chain: of the call.
        record: of the layer that communicates.
    """

    def __init__(self, ends: Sequence[int], place: int, ticks: Ticks, line: Line, chain: Chain,
                 record: list[list[tuple[Tensor, bool]]] | None = None) -> None:
        super().__init__(ends, place, ticks)
        self._line, self._chain, self._record, self._used = line, chain, record, 0

    def at(self, state: Any) -> HandedPieces:
        records = self._chain.records
        record = None if records is None else records.setdefault(id(state), [])
        return HandedPieces(self.ends, self.place, self.ticks, self._line, self._chain, record)

    def in_turn(self, run: Callable[[Any], R], state: Any) -> R:
        out: Any = run(state if self.place == 0 else self._received(state))
        if self.place + 1 < self._line.count:
            self._once(lambda: self._send(out.state))
        result: R = out
        return result

    def each(self, *values: Tensor) -> list[tuple[Tensor, ...]]:
        flat = torch.cat([value.reshape(-1) for value in values])
        (whole,) = self._once(lambda: [self._called(gathered, flat, self._line.group, self._line.count)])
        sizes = [value.numel() for value in values]
        return [tuple(part.view(value.shape) for part, value in zip(one.split(sizes), values, strict=True))
                for one in whole.unbind()]

    def _received(self, state: Any) -> Any:
        """The state of the process before, on the clock of this one's."""
        def work() -> Sequence[Tensor]:
            tensors, line = own_tensors(state, state.clock), self._line
            sizes: list[Any] = [list(tensor.shape) for tensor, _ in tensors]
            if sized_by_calls(tensors):
                sizes = line.receive_shapes([tensor for tensor, _ in tensors])
            return [self._called(received, size, tensor.dtype, line.group, line.place - 1)
                    for (tensor, _), size in zip(tensors, sizes, strict=True)]

        return filled(state, iter(self._once(work)), state.clock)

    def _send(self, state: Any) -> Sequence[Tensor]:
        tensors, line = own_tensors(state, state.clock), self._line
        if sized_by_calls(tensors):
            line.send_shapes([tensor for tensor, _ in tensors])
        for tensor, _ in tensors:
            self._chain.thread = sent(self._chain.thread, tensor, line.group, line.place + 1)
        return []

    def _called(self, operator: Any, *arguments: Any) -> Tensor:
        """The result of an operator of the chain besides the thread."""
        self._chain.thread, found = operator(self._chain.thread, *arguments)
        result: Tensor = found
        return result

    def _once(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The result of ``work``, or of the same call when the layer ran first."""
        if self._record is None:
            return work()
        self._used += 1
        if self._used <= len(self._record):
            return [tensor.detach().requires_grad_(live) for tensor, live in self._record[self._used - 1]]
        found = work()
        self._record.append([(each.detach(), each.requires_grad) for each in found])
        return found


def own_tensors(state: Any, clock: Any) -> list[tuple[Tensor, TensorField]]:
    """The tensors of a layer's state with their declarations, those of its clock left out."""
    found: list[tuple[Tensor, TensorField]] = []
    for name, spec in declared(type(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            found.append((value, spec))
        else:
            for part in parts_in(value, clock):
                found.extend(own_tensors(part, clock))
    return found


def filled(state: Any, tensors: Iterator[Tensor], clock: Any) -> Any:
    """The state with other tensors, in the order of `own_tensors`."""
    changes: dict[str, Any] = {}
    for name, _ in declared(type(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            changes[name] = next(tensors)
        elif isinstance(value, tuple):
            changes[name] = tuple(filled(item, tensors, clock) if parts_in(item, clock) else item for item in value)
        elif parts_in(value, clock):
            changes[name] = filled(value, tensors, clock)
    return dataclasses.replace(state, **changes)


def parts_in(value: Any, clock: Any) -> list[Any]:
    """The states in a field of a state."""
    items = value if isinstance(value, tuple) else (value,)
    return [item for item in items if isinstance(item, Tree) and item is not clock]


def sized_by_calls(tensors: Sequence[tuple[Tensor, TensorField]]) -> bool:
    """Whether tensors of a state can have other shapes on another process."""
    return any(spec.grows is not None or spec.as_given for _, spec in tensors)
