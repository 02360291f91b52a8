"""Laws 8 and 12: results in other dtypes and on other devices stay within a stated bound of float64, and `log_prob`
equals the log-softmax of the logits."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.model import LanguageModel
from weft.core.span import Memory, Span
from weft.laws.in_pieces import Choices, recorded
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject

LAW = "precision"

BOUNDS = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""The largest difference. In float32 (24 bits) it is relative to the largest output, of which a small part, which
computes a few sums of at most some dozens of terms of order one, loses some hundreds of units in the last place. In
float16 (11 bits, 5e-4) and bfloat16 (8 bits, 4e-3) it is the root of the mean square, relative to that of the outputs,
with weights and inputs rounded alike on both sides; all parts of Weft keep below a third of it."""


LARGEST = {torch.float16: 3e-2, torch.bfloat16: 1.5e-1}
"""The largest difference of a single number in half precision, relative to the largest output: a mean square says
little of one number among many."""


def precision(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The same weights and inputs in float32, float16 and bfloat16, in one call and token by token, against float64
    with weights and inputs that were rounded alike; and float64 on an accelerator if there is one. Only float64
    subjects are cast. Where a layer chooses another expert than in float64, the choice in float64 must have been a near
    tie; the rest of that row is not compared."""
    if any(p.dtype != torch.float64 for p in subject.module.parameters()) or not subject.differentiable:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    with torch.no_grad():
        for dtype in BOUNDS:
            twin = cast(subject, dtype)
            rounded = cast(twin, torch.float64)
            with recorded(rounded.module) as choices:
                exact = rounded.whole(tensor_in(tensor_in(x, dtype), torch.float64),
                                      memory_in(memory_in(memory, dtype), torch.float64)).y
            with recorded(twin.module) as chosen:
                y = twin.whole(tensor_in(x, dtype), memory_in(memory, dtype)).y
            yield from agreement(subject, LAW, str(dtype), y, exact, chosen, choices, dtype)
            if subject.stateful:
                with recorded(twin.module) as chosen:
                    steps, changed = _steps(twin, x, memory, dtype)
                yield from agreement(subject, LAW, f"{dtype}, token by token", steps, exact, chosen, choices, dtype)
                yield Finding(LAW, f"{dtype}, fields of the state that change dtype: {', '.join(changed) or 'none'}",
                              float(len(changed)), COUNT)
        if torch.cuda.is_available():
            there = cast(subject, torch.float64, "cuda")
            source = None if memory is None else Memory(memory.h.cuda(),
                                                        None if memory.count is None else memory.count.cuda())
            here = subject.whole(x, memory).y
            yield Finding(LAW, "float64 on cuda", difference(there.whole(x.cuda(), source).y.to(here.device), here),
                          subject.gradient_bound)


def agreement(subject: Subject, law: str, case: str, actual: Tensor, exact: Tensor, choices: Choices,
              exact_choices: Choices, dtype: torch.dtype) -> Iterator[Finding]:
    """Outputs of a subject in ``dtype`` against those in float64, up to each row's first different choice of an
    expert."""
    bound = BOUNDS[dtype]
    if Trait.DISCRETE_CHOICE in subject.traits:
        agreed, margin = exact_choices.against(choices, exact.shape[1], causal=subject.stateful)
        yield Finding(law, f"{case}: margin of the widest choice that fell otherwise", margin, bound)
        actual = torch.where(agreed[..., None], actual.double(), exact)
    size, half = largest(exact), LARGEST.get(dtype)
    found, expected = actual.double() / size, exact / size
    if half is None:
        yield Finding(law, case, difference(found, expected), bound)
        return
    yield Finding(law, f"{case}, largest difference", difference(found, expected), half)
    if found.shape == expected.shape:
        # The root of the mean square, relative to that of the outputs; infinite if one is NaN.
        error, outputs = float((found - expected).norm()), float(expected.norm())
        yield Finding(law, case, math.inf if math.isnan(error) else error / (outputs or 1.0), bound)


def largest(exact: Tensor) -> Tensor:
    """The largest output; 1 where all are zero, as those of an attention in which no token of the row sees any."""
    size = exact.abs().max()
    return torch.where(size == 0, torch.ones_like(size), size)


def cast(subject: Subject, dtype: torch.dtype, device: str | None = None) -> Subject:
    """A copy of the subject in another dtype, on its own device or on another."""
    return subject.remake(copy.deepcopy(subject.module).to(device=device, dtype=dtype))


def tensor_in(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating-point inputs in the dtype; ids unchanged."""
    return x.to(dtype) if x.is_floating_point() else x


def memory_in(memory: Memory | None, dtype: torch.dtype) -> Memory | None:
    """The source's vectors in the dtype."""
    return None if memory is None else replace(memory, h=memory.h.to(dtype))


def _steps(subject: Subject, x: Tensor, memory: Memory | None, dtype: torch.dtype) -> tuple[Tensor, list[str]]:
    """The outputs token by token, and the state fields whose dtype has changed at the end: an accumulator that is
    rounded at every step loses too little on a short row to change the outputs."""
    state, outs = subject.start(x.shape[0], memory_in(memory, dtype), None, subject.steps), []
    first = {path: tensor.dtype for path, (tensor, _) in state.tensors().items()}
    for t in range(x.shape[1]):
        out = subject.call(tensor_in(x[:, t:t + 1], dtype), state, Span())
        assert out.state is not None, "a call with a state returns one"
        state = out.state
        outs.append(out.y)
    last = state.tensors()
    return torch.cat(outs, 1), [path for path, kind in first.items() if last[path][0].dtype != kind]


def readout(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """`log_prob` equals gathering from the log-softmax of the logits."""
    model = subject.module
    if not isinstance(model, LanguageModel):
        return
    x = subject.inputs(3, subject.steps, generator)
    targets = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    with torch.no_grad():
        h = model.hidden(x, None, Span(memory=memory)).y
        logs = model.readout.logits(h).double().log_softmax(-1)
        expected = logs.gather(-1, targets[..., None])[..., 0]
        actual = model.readout.log_prob(h, targets)
    yield Finding("readout", "log_prob against the logits", difference(actual, expected), subject.bound)
