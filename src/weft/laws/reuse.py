"""A state that a call has consumed is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from weft.core.errors import StateError
from weft.laws.pieces import advance
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject

LAW = "reuse"


def reuse(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """With gradients off a call may write into the state's buffers, so passing or copying the state again is refused.
    With gradients on nothing is overwritten, and a second call with the state equals the first."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    half = subject.steps // 2
    with torch.no_grad():
        _, state = advance(subject, x[:, :half], subject.start(2, memory, subject.steps, subject.steps))
        advance(subject, x[:, half:], state)
        for what, again in (("passed again", lambda: advance(subject, x[:, half:], state)),
                            ("cloned", state.clone), ("selected from", lambda: state.select([0]))):
            yield Finding(LAW, f"a consumed state {what}", float(not _refused(again)), COUNT)
    with torch.enable_grad():
        _, state = advance(subject, x[:, :half], subject.start(2, memory, None, subject.steps))
        first, _ = advance(subject, x[:, half:], state)
        second, _ = advance(subject, x[:, half:], state)
    yield Finding(LAW, "passed twice with gradients on", difference(second, first), subject.bound)


def _refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except StateError:
        return True
    return False
