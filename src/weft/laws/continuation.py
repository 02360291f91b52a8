"""A state is continued by several tokens at once in float32 too: sums that cancel, or powers that overflow, can be
wrong there and right in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.laws.choices import recorded
from weft.laws.pieces import few_pieces, in_pieces
from weft.laws.precision import agreement, cast, memory_in, tensor_in
from weft.laws.report import Finding
from weft.laws.subject import Subject

LAW = "continuation"


def continuation(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Pieces of several tokens in float32, without gradients, with growing and with reserved buffers, against one call
    in float64, within the bound of `weft.laws.precision`."""
    if not (subject.stateful and subject.differentiable) or any(
            p.dtype != torch.float64 for p in subject.module.parameters()):
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    kind = torch.float32
    twin = cast(subject, kind)
    with torch.no_grad():
        with recorded(subject.module) as choices:
            exact = subject.whole(x, memory).y
        for capacity in (None, subject.steps):
            state = twin.start(2, memory_in(memory, kind), capacity, subject.steps)
            with recorded(twin.module) as chosen:
                y, _ = in_pieces(twin, tensor_in(x, kind), state, few_pieces(subject.steps))
            room = "growing" if capacity is None else "reserved"
            yield from agreement(subject, LAW, f"float32, several tokens at once, {room} buffers", y, exact, chosen,
                                 choices, kind)
