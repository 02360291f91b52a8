"""Differentiable communication of the processes that compute pieces of the same rows.

Every function takes and returns a *thread*, a scalar through which autograd sees them as one chain. The gradient of the
loss enters the chain at its end (`closed`), so that the backward passes of all processes communicate in exactly the
reverse order, each function once, whether or not a process used what it received.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from weft.core.pieces import Pieces
from weft.core.state import TensorField, leaves
from weft.core.ticks import Ticks
from weft.core.tree import Tree

R = TypeVar("R")


@final
@dataclass(eq=False)
class Line:
    """The processes that compute the pieces of a row, in the order of the pieces.

    Attributes:
        group: of torch; its ranks are the places of the pieces.
        place: of this process.
        count: of processes.
        sent: messages that may still be on their way, with their tensors.
    """

    group: dist.ProcessGroup
    place: int
    count: int
    sent: list[tuple[Any, Tensor]] = field(default_factory=list)

    def send(self, tensor: Tensor, steps: int) -> None:
        """Send a tensor to the process so many places further; it must know the shape and the dtype."""
        values = plain(tensor)
        self.sent.append((dist.isend(values, group=self.group, group_dst=self.place + steps), values))

    def receive(self, tensor: Tensor, steps: int) -> None:
        """Overwrite a contiguous tensor with what the process so many places further sends."""
        dist.recv(plain(tensor), group=self.group, group_src=self.place + steps)

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all places, [count, ...]."""
        whole = tensor.new_empty(self.count, *tensor.shape)
        dist.all_gather([plain(part) for part in whole.unbind()], plain(tensor), group=self.group)
        return whole

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all places."""
        summed = tensor.contiguous().clone()
        dist.all_reduce(plain(summed), group=self.group)
        return summed

    def send_shapes(self, tensors: Sequence[Tensor]) -> None:
        """Send the shapes of tensors to the next process, which knows how many dimensions they have."""
        self.send(torch.tensor([size for each in tensors for size in each.shape]), 1)

    def receive_shapes(self, templates: Sequence[Tensor]) -> list[list[int]]:
        """The shapes of the tensors of the process before, with as many dimensions as the templates have."""
        sizes = torch.empty(sum(each.dim() for each in templates), dtype=torch.int64)
        self.receive(sizes, -1)
        found = iter(sizes.tolist())
        return [[next(found) for _ in each.shape] for each in templates]

    def settle(self) -> None:
        """Wait until everything that was sent has arrived."""
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


def plain(tensor: Tensor) -> Tensor:
    """A contiguous view, of real numbers, for the backends do not send complex ones."""
    whole = tensor.detach().contiguous()
    return torch.view_as_real(whole) if whole.is_complex() else whole


class Gathered(Function):
    """(thread, x) -> (thread, [count, *x.shape]). The gradient of x is the sum of those of all places."""

    @staticmethod
    def forward(ctx: Any, line: Line, thread: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.line = line
        return thread.clone(), line.gather(x)

    @staticmethod
    def backward(ctx: Any, thread: Tensor, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        # gloo has no sum that leaves each process its own part, and the sum of everything is needed once a layer.
        return None, thread, ctx.line.sum(grad)[ctx.line.place]


class Received(Function):
    """(thread, templates) -> (thread, tensors of the process before), with their shapes and dtypes."""

    @staticmethod
    def forward(ctx: Any, line: Line, thread: Tensor, *templates: Tensor) -> tuple[Tensor, ...]:
        ctx.line = line
        tensors = [torch.empty_like(each, memory_format=torch.contiguous_format) for each in templates]
        for tensor in tensors:
            line.receive(tensor, -1)
        ctx.mark_non_differentiable(*(each for each in tensors if not differentiable(each)))
        return thread.clone(), *tensors

    @staticmethod
    def backward(ctx: Any, thread: Tensor, *grads: Tensor) -> tuple[Tensor | None, ...]:
        for grad in grads:
            if differentiable(grad):
                ctx.line.send(grad, -1)
        return None, thread, *(None for _ in grads)


class Sent(Function):
    """(thread, tensors) -> thread, with the tensors sent to the next process, from which their gradients return."""

    @staticmethod
    def forward(ctx: Any, line: Line, thread: Tensor, *tensors: Tensor) -> Tensor:
        ctx.line, ctx.kinds = line, [(each.shape, each.dtype, each.device) for each in tensors]
        for tensor in tensors:
            line.send(tensor, 1)
        return thread.clone()

    @staticmethod
    def backward(ctx: Any, thread: Tensor) -> tuple[Tensor | None, ...]:
        grads: list[Tensor | None] = []
        for shape, dtype, device in ctx.kinds:
            empty = torch.empty(shape, dtype=dtype, device=device)
            if differentiable(empty):
                ctx.line.receive(empty, 1)
            grads.append(empty if differentiable(empty) else None)
        return None, thread, *grads


class Closed(Function):
    """(value, thread) -> value; in the backward pass the chain of the thread begins here."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, thread: Tensor) -> Tensor:
        ctx.thread = thread.new_zeros(())
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, ctx.thread


def differentiable(tensor: Tensor) -> bool:
    """Whether a tensor of its dtype can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


@final
@dataclass(eq=False)
class Chain:
    """The communication of one call.

    Attributes:
        thread: what the last function returned.
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
        (whole,) = self._once(lambda: self._called(Gathered, flat))
        sizes = [value.numel() for value in values]
        return [tuple(part.view(value.shape) for part, value in zip(one.split(sizes), values, strict=True))
                for one in whole.unbind()]

    def _received(self, state: Any) -> Any:
        """The state of the process before, on the clock of this one's."""
        tensors = list(own_tensors(state))
        templates = [tensor for tensor, _ in tensors]

        def work() -> Sequence[Tensor]:
            shaped = templates
            if any(spec.grows is not None or spec.as_given for _, spec in tensors):
                shapes = self._line.receive_shapes(templates)
                shaped = [each.new_empty(shape) for each, shape in zip(templates, shapes, strict=True)]
            return self._called(Received, *shaped)

        return filled(state, iter(self._once(work)), {id(state.clock): state.clock})

    def _send(self, state: Any) -> Sequence[Tensor]:
        tensors = list(own_tensors(state))
        if any(spec.grows is not None or spec.as_given for _, spec in tensors):
            self._line.send_shapes([tensor for tensor, _ in tensors])
        return self._called(Sent, *(tensor for tensor, _ in tensors))

    def _called(self, function: Any, *tensors: Tensor) -> Sequence[Tensor]:
        """Call a function of the chain; what it returns besides the thread."""
        found: Any = function.apply(self._line, self._chain.thread, *tensors)
        self._chain.thread, *rest = found if isinstance(found, tuple) else (found,)
        return rest

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


def own_tensors(state: Any) -> Iterator[tuple[Tensor, TensorField]]:
    """The tensors of a layer's state with their declarations, those of its clock left out."""
    for _, value, spec in leaves(state, "", {id(state.clock)}):
        if isinstance(value, Tensor):
            yield value, spec


def filled(state: Any, tensors: Iterator[Tensor], done: dict[int, Any]) -> Any:
    """The state with other tensors, in the order of `own_tensors`. ``done``: what has been visited, by identity."""
    if id(state) in done:
        return done[id(state)]
    changes: dict[str, Any] = {}
    for own in dataclasses.fields(state):
        value = getattr(state, own.name)
        if isinstance(value, Tensor):
            changes[own.name] = next(tensors)
        elif isinstance(value, Tree):
            changes[own.name] = filled(value, tensors, done)
        elif isinstance(value, tuple):
            changes[own.name] = tuple(filled(item, tensors, done) if isinstance(item, Tree) else item
                                      for item in value)
    done[id(state)] = dataclasses.replace(state, **changes)
    return done[id(state)]
