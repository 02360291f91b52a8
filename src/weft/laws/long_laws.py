"""The laws on long rows: the comparisons of the laws on short rows, few of each (see `weft.laws.length`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.model import LanguageModel
from weft.core.span import Memory, Span
from weft.core.state import restore, state_arrays
from weft.laws.gradients import first_run, run
from weft.laws.in_pieces import Choices, recorded
from weft.laws.length import GRADIENT_STEPS, LongRows, across, around, late_state, one_by_one, row_in_pieces
from weft.laws.other_dtypes import BOUNDS, largest
from weft.laws.report import COUNT, Finding, compare, gradient_difference
from weft.laws.slopes import joint_slope
from weft.laws.subject import Subject
from weft.linear.inference import inference_form

LATE = (620, 60, 20)
"""Sizes of the pieces of one row whose gradients are compared beyond `GRADIENT_STEPS` tokens."""

NEAR = 16
"""Tokens up to which the bound of `precision` is that of short rows; beyond, it grows with the length, because angles
and sums do."""


def split(row: LongRows) -> Iterator[Finding]:
    """Pieces that end around the borders, pieces of odd sizes with reserved buffers, and single tokens from the
    beginning and across every border, against one call."""
    subject, steps = row.subject, row.steps
    if not subject.stateful:
        return
    ways = {"pieces that end around " + _named(row.marks): (around(row.marks, steps), False),
            "pieces of odd sizes, reserved buffers and facts": (across(steps), True)}
    if subject.thorough:
        ways["single tokens"] = (one_by_one(row.marks, steps, row.singles), True)
    for case, (sizes, reserved) in ways.items():
        with torch.no_grad(), recorded(subject.module) as chosen:
            actual = row_in_pieces(row, sizes, reserved)[0]
        if row.y.dtype != torch.float64 and Trait.DISCRETE_CHOICE in subject.traits:
            actual, margin = _undecided(row, actual, chosen)
            yield Finding("split", f"{case}: margin of the widest choice that fell otherwise", margin, subject.bound)
        yield compare("split", case, actual, row.y, subject.bound)
    if subject.differentiable and subject.thorough and steps <= GRADIENT_STEPS:
        yield _gradients(row, around(row.marks, steps), "pieces that end around " + _named(row.marks))
    if subject.differentiable and not subject.thorough and steps >= sum(LATE):
        yield _gradients(_one(row, sum(LATE)), list(LATE), f"one row in pieces of {', '.join(map(str, LATE))}")


def _undecided(row: LongRows, actual: Tensor, chosen: Choices) -> tuple[Tensor, float]:
    """``actual`` up to each row's first choice of an expert that differs from that in the whole row, followed by the
    expected outputs; and the margin of the widest such choice, since rounding decides near ties."""
    agreed, margin = row.choices.against(chosen, row.steps, causal=row.subject.stateful)
    return torch.where(agreed[..., None], actual, row.y), margin


def _named(marks: tuple[int, ...]) -> str:
    return ", ".join(map(str, marks)) if marks else "nothing"


def _one(row: LongRows, steps: int) -> LongRows:
    """The first tokens of the first row."""
    return replace(row, subject=replace(row.subject, steps=steps), x=row.x[:1, :steps], memory=_row_of(row, 0),
                   prefix=None if row.prefix is None else row.prefix[:1, :steps], y=row.y[:1, :steps], late=[])


def _gradients(row: LongRows, sizes: list[int], case: str) -> Finding:
    """The gradients of pieces of these sizes, against those of one call."""
    span = Span(prefix=row.prefix)
    whole, weights = first_run(row.subject, row.x, row.memory, row.generator,
                               lambda x, memory: row.subject.whole(x, memory, span).y)
    pieces = run(row.subject, row.x, row.memory, weights,
                 lambda x, memory: row_in_pieces(row, sizes, inputs=(x, memory))[0])
    return Finding("split gradients", case, gradient_difference(pieces.gradients, whole.gradients),
                   row.subject.gradient_bound)


def slopes(row: LongRows) -> Iterator[Finding]:
    """The gradient of one row along one direction, up to `GRADIENT_STEPS` tokens, against the difference quotient."""
    if row.subject.differentiable and row.subject.thorough:
        one = _one(row, min(row.steps, GRADIENT_STEPS))
        yield joint_slope(one.subject, one.x, one.memory, Span(prefix=one.prefix), row.generator)


def causality(row: LongRows) -> Iterator[Finding]:
    """Tokens from a border on are replaced, for all borders in one call; the outputs before it stay."""
    subject, steps = row.subject, row.steps
    if not subject.stateful:
        return
    marks = row.marks[-4:] if subject.thorough else ()
    places = sorted({max(steps // 2, 3), steps - 1, *marks})
    other = subject.inputs(1, steps, row.generator)
    changed = torch.cat([torch.cat([row.x[:1, :place], other[:, place:]], 1) for place in places])
    rows = torch.zeros(len(places), dtype=torch.int64, device=row.x.device)
    prefix = None if row.prefix is None else row.prefix[rows]
    with torch.no_grad():
        actual = subject.whole(changed, None if row.memory is None else row.memory.select(rows), Span(prefix=prefix)).y
    for index, place in enumerate(places):
        yield compare("causality", f"tokens from {place + 1} on replaced", actual[index:index + 1, :place],
                      row.y[:1, :place], subject.bound)


def ragged(row: LongRows) -> Iterator[Finding]:
    """Two rows of different lengths in one call, padded with NaN unless they are ids, against each row alone."""
    subject, steps = row.subject, row.steps
    counts = [steps - 1, max(steps // 2 + 1, 3)]
    padding = torch.arange(steps)[None] >= torch.tensor(counts)[:, None]
    x = row.x
    if x.is_floating_point():
        x = x.masked_fill(padding.to(x.device)[..., None], torch.nan)
    span = Span(count=torch.tensor(counts, device=x.device), prefix=row.prefix)
    with torch.no_grad():
        both = subject.whole(x, row.memory, span).y
        for b, count in enumerate(counts):
            prefix = None if row.prefix is None else row.prefix[b:b + 1, :count]
            alone = subject.whole(row.x[b:b + 1, :count], _row_of(row, b), Span(prefix=prefix)).y
            yield compare("ragged", f"row of {count} among {counts} tokens", both[b:b + 1, :count], alone,
                          subject.bound)


def _row_of(row: LongRows, b: int) -> Memory | None:
    return None if row.memory is None else row.memory.select(torch.tensor([b], device=row.x.device))


def selection(row: LongRows) -> Iterator[Finding]:
    """Rows of a state near the end of the row, reordered and copied."""
    if not row.subject.stateful:
        return
    early, state = late_state(row)
    with torch.no_grad():
        actual = row.subject.call(row.x[[1, 0, 1], early:], state.select([1, 0, 1]), Span()).y
    yield compare("selection", f"rows [1, 0, 1] after {early} tokens", actual, row.y[[1, 0, 1], early:],
                  row.subject.bound)


def persistence(row: LongRows) -> Iterator[Finding]:
    """A state near the end of the row, saved and loaded."""
    if not row.subject.stateful:
        return
    early, state = late_state(row)
    with torch.no_grad():
        back = restore(row.subject.start(2, row.memory, None, None), load(save(state_arrays(state))))
        actual, kept = (row.subject.call(row.x[:, early:], each, Span()).y for each in (back, state))
    yield compare("persistence", f"state saved after {early} tokens and restored", actual, kept, 1e-300)


def bounded(row: LongRows) -> Iterator[Finding]:
    """State fields keep their shape to the end of the row, except along a dimension that is declared to grow."""
    if not row.subject.stateful:
        return
    early, state = late_state(row)
    begun = row.subject.start(2, row.memory, None, row.steps).tensors()
    grown = [path for path, (tensor, spec) in state.tensors().items() if path in begun and any(
        dim != spec.grows and a != b for dim, (a, b) in
        enumerate(zip(begun[path][0].shape, tensor.shape, strict=True)))]
    yield Finding("bounded", f"fields that grew undeclared after {early} tokens: {', '.join(grown) or 'none'}",
                  float(len(grown)), COUNT)


def packed(row: LongRows) -> Iterator[Finding]:
    """A row of two documents, in one call and in two pieces, against each document alone."""
    subject, steps = row.subject, row.steps
    place = max(steps // 3 + 2, 4)
    begins = torch.zeros(2, steps, dtype=torch.bool, device=row.x.device)
    begins[0, place] = True
    ends = [place, steps]
    with torch.no_grad():
        alone = torch.cat([subject.whole(row.x[:1, a:b], _row_of(row, 0)).y for a, b in zip([0, place], ends,
                                                                                          strict=True)], 1)
        other = subject.whole(row.x[1:], _row_of(row, 1)).y
        expected = torch.cat([alone, other])
        case = f"a document begins at {place + 1}"
        actual = subject.whole(row.x, row.memory, Span(begins=begins)).y
        yield compare("packed", case, actual, expected, subject.bound)
        if subject.stateful and Trait.DECLARED_LENGTH not in subject.traits:
            cut = place + 3  # so that no document begins in the second piece
            first = subject.call(row.x[:, :cut], subject.start(2, row.memory, None, None), Span(begins=begins[:, :cut]))
            assert first.state is not None, "a call with a state returns one"
            actual = torch.cat([first.y, subject.call(row.x[:, cut:], first.state, Span()).y], 1)
            yield compare("packed", f"{case}, in pieces", actual, expected, subject.bound)


def precision(row: LongRows) -> Iterator[Finding]:
    """The same weights and inputs in float32, against float64. From the first different choice of an expert on, a row
    is not compared."""
    if not _castable(row):
        return
    single, x, memory = _single(row)
    with torch.no_grad(), recorded(single.module) as chosen:
        whole = single.whole(x, memory, Span(prefix=row.prefix)).y
    yield _relative(row, "precision", "torch.float32", whole, chosen)


def continuation(row: LongRows) -> Iterator[Finding]:
    """The same weights and inputs in float32 and in pieces of several tokens, against float64 in one call."""
    if not (_castable(row) and row.subject.stateful):
        return
    single, x, memory = _single(row)
    with torch.no_grad(), recorded(single.module) as chosen:
        pieces = row_in_pieces(row, across(row.steps), subject=single, inputs=(x, memory))[0]
    yield _relative(row, "continuation", "torch.float32, pieces of odd sizes", pieces, chosen)


def _castable(row: LongRows) -> bool:
    """Whether the subject can be compared with itself in float32: only float64 subjects are cast."""
    return row.subject.differentiable and all(p.dtype == torch.float64 for p in row.subject.module.parameters())


def _single(row: LongRows) -> tuple[Subject, Tensor, Memory | None]:
    """The subject, its inputs and its memory in float32."""
    memory = None if row.memory is None else replace(row.memory, h=row.memory.h.float())
    return (row.subject.remake(copy.deepcopy(row.subject.module).float()),
            row.x.float() if row.x.is_floating_point() else row.x, memory)


def _relative(row: LongRows, law: str, case: str, actual: Tensor, chosen: Choices) -> Finding:
    actual = actual.double()
    if Trait.DISCRETE_CHOICE in row.subject.traits:
        actual = _undecided(row, actual, chosen)[0]
    size = largest(row.y)
    return compare(law, case, actual / size, row.y / size, BOUNDS[torch.float32] * max(1, row.steps // NEAR))


def readout(row: LongRows) -> Iterator[Finding]:
    """`log_prob` against the log-softmax of the logits, for every token of the row."""
    model = row.subject.module
    if not isinstance(model, LanguageModel):
        return
    targets = row.subject.inputs(2, row.steps, row.generator)
    with torch.no_grad():
        h = model.hidden(row.x, None, Span(memory=row.memory)).y
        expected = model.readout.logits(h).double().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        yield compare("readout", "log_prob against the logits", model.readout.log_prob(h, targets), expected,
                      row.subject.bound)


def inference(row: LongRows) -> Iterator[Finding]:
    """The form for inference against the part itself, in one call and in pieces."""
    form = row.subject.remake(inference_form(row.subject.module))
    with torch.inference_mode():
        whole = form.whole(row.x, row.memory, Span(prefix=row.prefix)).y
        yield compare("inference", "whole", whole, row.y, row.subject.bound)
        if row.subject.stateful:
            actual = row_in_pieces(row, across(row.steps), True, form)[0]
            yield compare("inference", "pieces of odd sizes", actual, row.y, row.subject.bound)


LONG_LAWS: dict[str, Callable[[LongRows], Iterator[Finding]]] = {"split": split, "slopes": slopes,
                                                                 "causality": causality, "ragged": ragged,
                                                                 "selection": selection, "packed": packed,
                                                                 "persistence": persistence, "bounded": bounded,
                                                                 "precision": precision, "continuation": continuation,
                                                                 "readout": readout, "inference": inference}
"""By the names of the laws on short rows."""

OWN_LONG_LAWS = ("split", "causality", "ragged", "packed")
"""Laws that can be compared in any dtype, on a model of any size."""

OWN_CHOOSING_LAWS = ("split",)
"""The same for a model that chooses experts: rounding decides near ties, and only this law leaves out what follows
them."""
