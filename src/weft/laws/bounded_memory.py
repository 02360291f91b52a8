"""A bounded state needs as much memory after many tokens as after few, and modules store nothing that grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from weft.core.declarations import Trait
from weft.core.layer import LayerState
from weft.core.state import State
from weft.laws.in_pieces import advance
from weft.laws.report import COUNT, Finding
from weft.laws.subject import Subject

LAW = "memory"
EARLY = 3
"""Tokens after which tables that the first call computes exist, and short buffers are full."""
SLACK = 1.25
"""By which factor the memory of a late step may exceed that of an early one: other tokens choose other experts, which
run in groups of other sizes."""


def memory(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Early and late in a row: the bytes of all storages that a state refers to, also by views of larger tensors; the
    bytes that one step allocates; and the bytes and container entries that modules store besides parameters. The
    buffers of a state that grows are reserved, and its steps may allocate more."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    source = subject.memory(2, generator)
    with torch.no_grad():
        state = subject.start(2, source, subject.steps, subject.steps)
        grows = any(spec.grows is not None for _, spec in state.tensors().values())
        # Copies, so that a state that stores a view of a chunk refers to that chunk's storage and not to the row's.
        chunks = [piece.clone() for piece in x.split([EARLY - 1, 1, subject.steps - EARLY - 1, 1], 1)]
        _, state = advance(subject, chunks[0], state)
        made, state = _step(subject, chunks[1], state)
        early, beside = _referenced(state), _stored(subject)
        _, state = advance(subject, chunks[2], state)
        chunk = _referenced(state)
        late, state = _step(subject, chunks[3], state)
    yield Finding(LAW, f"bytes that a state keeps alive: {early} after {EARLY} tokens, {chunk} after a chunk, "
                  f"{_referenced(state)} after a step behind it", float(max(chunk, _referenced(state)) > early), COUNT)
    if not grows and Trait.DECLARED_LENGTH not in subject.traits:
        yield Finding(LAW, f"bytes allocated in one step: {made} after {EARLY} tokens, {late} after {subject.steps}",
                      float(late > SLACK * made), COUNT)
    yield Finding(LAW, f"bytes and entries that modules hold beside parameters: {beside} after {EARLY} tokens, "
                  f"{_stored(subject)} after {subject.steps}", float(_stored(subject) > beside), COUNT)


def _step(subject: Subject, x: Tensor, state: LayerState) -> tuple[int, LayerState]:
    """The bytes that one call allocates, and the state after it."""
    with _Allocated() as allocated:
        _, after = advance(subject, x, state)
    return allocated.bytes, after


@final
class _Allocated(TorchDispatchMode):
    """Adds up the bytes that operations return; views count too, early and late alike."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes += sum(tensor.nbytes for tensor in _tensors(out))
        return out


def _referenced(state: State) -> int:
    """Bytes of all storages that the state's fields refer to, also those of plain facts."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(state)}
    return sum(storages.values())


def _stored(subject: Subject) -> int:
    """Bytes of tensors and entries of containers in the attributes of all modules, parameters excepted."""
    size, common = 0, vars(nn.Module()).keys()
    for part in subject.module.modules():
        size += sum(buffer.nbytes for buffer in part.buffers(recurse=False))
        own = {name: value for name, value in vars(part).items() if name not in common}
        size += sum(tensor.nbytes for tensor in _tensors(own)) + _entries(own)
    return size


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in a value, also inside states and containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, State):
        yield from _tensors(vars(value))
    else:
        for item in _items(value):
            yield from _tensors(item)


def _entries(value: Any) -> int:
    """The entries of all containers in a value."""
    items = _items(value)
    return len(items) + sum(_entries(item) for item in items)


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []
