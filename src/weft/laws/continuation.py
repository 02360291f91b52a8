"""In float32 too a state may be continued by several tokens at once: what is right in float64 can be lost there, in
sums that cancel or in powers that overflow."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.laws.choices import watched
from weft.laws.pieces import few, in_pieces
from weft.laws.precision import BOUNDS, agreement, cast, memory_in, tensor_in
from weft.laws.report import Finding
from weft.laws.subject import Subject

LAW = "continuation"


def continuation(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """float32 in pieces of several tokens against float64 in one call, gradients off, within the bound of law 8, with
    buffers that grow and reserved ones."""
    if not (subject.stateful and subject.differentiable) or any(
            p.dtype != torch.float64 for p in subject.module.parameters()):
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    kind = torch.float32
    twin = cast(subject, kind)
    with torch.no_grad():
        with watched(subject.module) as wanted:
            exact = subject.whole(x, memory).y
        for capacity in (None, subject.steps):
            state = twin.start(2, memory_in(memory, kind), capacity, subject.steps)
            with watched(twin.module) as found:
                y, _ = in_pieces(twin, tensor_in(x, kind), state, few(subject.steps))
            room = "growing" if capacity is None else "reserved"
            yield from agreement(subject, LAW, f"float32, several tokens at once, {room} buffers", y, exact, found,
                                 wanted, BOUNDS[kind])
