"""A state that a call has consumed is not taken again."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.core.errors import StateError
from weft.laws.pieces import go_on
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject

LAW = "reuse"


def reuse(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """With gradients off buffers may be written in place, so a state that is passed once more, or forked, after a call
    with it is refused. With gradients on nothing is overwritten, and the second call gives what the first gave."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    half = subject.steps // 2
    with torch.no_grad():
        _, state = go_on(subject, x[:, :half], subject.start(2, memory, subject.steps, subject.steps))
        go_on(subject, x[:, half:], state)
        for what, again in (("passed again", lambda: go_on(subject, x[:, half:], state)),
                            ("cloned", state.clone), ("selected from", lambda: state.select([0]))):
            yield Finding(LAW, f"a consumed state {what}", float(not _refused(again)), 0.5)
    with torch.enable_grad():
        _, state = go_on(subject, x[:, :half], subject.start(2, memory, None, subject.steps))
        first, _ = go_on(subject, x[:, half:], state)
        second, _ = go_on(subject, x[:, half:], state)
    yield Finding(LAW, "passed twice with gradients on", difference(second, first), subject.bound)


def _refused(work: object) -> bool:
    assert callable(work)
    try:
        work()
    except StateError:
        return True
    return False
