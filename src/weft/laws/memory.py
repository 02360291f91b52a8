"""A bounded state costs as much after many tokens as after few, and nothing grows beside the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from weft.core.layer import LayerState
from weft.core.state import State
from weft.core.traits import Trait
from weft.laws.pieces import go_on
from weft.laws.report import Finding
from weft.laws.subject import Subject

LAW = "memory"
EARLY = 3
"""Tokens after which everything has been seen once: tables that are made at the first call, buffers that fill."""
SLACK = 1.25
"""How much more a step may make late in the row: experts that are chosen by other tokens are run in other groups."""


def memory(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """What a state keeps alive, be it by views of something greater; what one step makes; and what the modules hold
    besides: all in bytes, or in entries of lists, early and late in the row. A state whose fields grow has its room
    reserved, and its steps may take longer."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    source = subject.memory(2, generator)
    with torch.no_grad():
        state = subject.start(2, source, subject.steps, subject.steps)
        grows = any(spec.grows is not None for _, spec in state.tensors().values())
        # Chunks with memory of their own, so that a state that keeps a view of one is seen to keep it all.
        chunks = [piece.clone() for piece in x.split([EARLY - 1, 1, subject.steps - EARLY - 1, 1], 1)]
        _, state = go_on(subject, chunks[0], state)
        made, state = _step(subject, chunks[1], state)
        early, beside = _kept(state), _held(subject)
        _, state = go_on(subject, chunks[2], state)
        chunk = _kept(state)
        late, state = _step(subject, chunks[3], state)
    yield Finding(LAW, f"bytes that a state keeps alive: {early} after {EARLY} tokens, {chunk} after a chunk, "
                  f"{_kept(state)} after a step behind it", float(max(chunk, _kept(state)) > early), 0.5)
    if not grows and Trait.DECLARED_LENGTH not in subject.traits:
        yield Finding(LAW, f"bytes made in one step: {made} after {EARLY} tokens, {late} after {subject.steps}",
                      float(late > SLACK * made), 0.5)
    yield Finding(LAW, f"bytes and entries that modules hold beside parameters: {beside} after {EARLY} tokens, "
                  f"{_held(subject)} after {subject.steps}", float(_held(subject) > beside), 0.5)


def _step(subject: Subject, x: Tensor, state: LayerState) -> tuple[int, LayerState]:
    """The bytes that one call makes, and the state after it."""
    with _Made() as made:
        _, after = go_on(subject, x, state)
    return made.bytes, after


@final
class _Made(TorchDispatchMode):
    """Adds up what operations return, views too, which makes no difference between early and late."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes += sum(tensor.nbytes for tensor in _tensors(out))
        return out


def _kept(state: State) -> int:
    """Bytes of all storages that the state refers to, in its facts too."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(state)}
    return sum(storages.values())


def _held(subject: Subject) -> int:
    """Bytes of tensors, and entries of containers, in the attributes of all modules."""
    size, common = 0, vars(nn.Module()).keys()
    for part in subject.module.modules():
        size += sum(buffer.nbytes for buffer in part.buffers(recurse=False))
        own = {name: value for name, value in vars(part).items() if name not in common}
        size += sum(tensor.nbytes for tensor in _tensors(own)) + _entries(own)
    return size


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside states and containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, State):
        yield from _tensors(vars(value))
    else:
        for item in _items(value):
            yield from _tensors(item)


def _entries(value: Any) -> int:
    """Entries of all containers inside."""
    items = _items(value)
    return len(items) + sum(_entries(item) for item in items)


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset) else []
