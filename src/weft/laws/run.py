"""Running the laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from weft.core.errors import InputError, lacks_memory
from weft.core.registry import plugin_place
from weft.laws.bounded_memory import memory
from weft.laws.causality import causality
from weft.laws.consumed_states import forks, reuse, saving
from weft.laws.equal_forms import compile_whole, forms, inference, masks
from weft.laws.explicit_coordinates import coordinates
from weft.laws.head_outputs import heads
from weft.laws.inputs import inputs
from weft.laws.length import SINGLE, LongRows, allowed, finite, row
from weft.laws.long_laws import LONG_LAWS
from weft.laws.other_dtypes import precision, readout
from weft.laws.packed_rows import packed
from weft.laws.report import Finding, Report
from weft.laws.rewriting import rewriting
from weft.laws.separate_rows import bounded, persistence, ragged, seeds, selection
from weft.laws.serving import admission, rewinding, trimming
from weft.laws.slopes import slopes
from weft.laws.split import continuation, split
from weft.laws.stability import CALLS, FAR, stability, worn
from weft.laws.subject import CALL, Subject
from weft.laws.training_mode import training

LAWS: dict[str, Callable[[Subject, torch.Generator], Iterator[Finding]]] = {
    "split": split,
    "slopes": slopes,
    "causality": causality,
    "ragged": ragged,
    "selection": selection,
    "packed": packed,
    "persistence": persistence,
    "precision": precision,
    "bounded": bounded,
    "readout": readout,
    "inference": inference,
    "rewriting": rewriting,
    "continuation": continuation,
    "coordinates": coordinates,
    "forks": forks,
    "saving": saving,
    "reuse": reuse,
    "admission": admission,
    "trimming": trimming,
    "rewinding": rewinding,
    "training": training,
    "seeds": seeds,
    "memory": memory,
    "masks": masks,
    "inputs": inputs,
    "head": heads,
    "compile": compile_whole,
    "forms": forms,
}


def examine(subject: Subject, seed: int = 0, laws: tuple[str, ...] = tuple(LAWS)) -> Report:
    """Run the named laws, each with a generator of the given seed. An exception of the part is a finding too."""
    findings: list[Finding] = []
    for name in laws:
        generator = torch.Generator().manual_seed(seed)
        findings += guarded(name, subject, partial(LAWS[name], subject, generator))
    return Report(subject.name, tuple(findings), subject.steps)


def examine_long(subject: Subject, steps: int, seed: int = 0, laws: tuple[str, ...] = tuple(LONG_LAWS), *,
                 singles: int = SINGLE) -> Report:
    """Run the named laws on two rows of ``steps`` tokens (`weft.laws.long_laws`), the first ``singles`` of which are
    run one at a time, and those around each border."""
    subject = replace(subject, steps=steps)
    rows: list[LongRows] = []

    def whole() -> Iterator[Finding]:
        rows.append(row(subject, torch.Generator().manual_seed(seed), singles))
        yield finite(rows[0].y, subject)

    findings = list(guarded("finite", subject, whole))
    for name in laws if findings[0].holds else ():  # NaN equals nothing, so every law would fail
        # Another seed than that of the row, with which a law that replaces tokens would draw the same tokens again.
        own = replace(rows[0], generator=torch.Generator().manual_seed(seed + 1))
        findings += guarded(name, subject, partial(LONG_LAWS[name], own))
    return Report(subject.name, tuple(findings), steps)


def examine_far(subject: Subject, seed: int = 0, tokens: int = FAR, calls: int = CALLS) -> Report:
    """Run the law of stability (`weft.laws.stability`) over a row of ``tokens``, and over ``calls`` calls."""
    findings: list[Finding] = []
    for run in (partial(stability, tokens=tokens), partial(worn, calls=calls)):
        findings += guarded("stability", subject, partial(run, subject, torch.Generator().manual_seed(seed)))
    return Report(subject.name, tuple(findings), allowed(subject, tokens))


def guarded(law: str, subject: Subject, run: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a law; an exception in it is its last finding. Raises `InputError`: memory does not suffice,
    which is no defect of the part."""
    try:
        yield from run()
    except Exception as error:
        if lacks_memory(error):
            raise InputError(f"memory does not suffice for the law {law} on {subject.name} ({error}).", where="length",
                             remedy="Give a smaller --length, or a smaller model.") from error
        text = str(error).strip().splitlines()
        message = f": {text[0]}" if text else ""
        place = plugin_place(error)
        where = "" if place is None else f" ({place})"
        where += "".join(f", {note}" for note in getattr(error, "__notes__", ()) if note.startswith(CALL))
        yield Finding(law, f"raised {type(error).__name__}{message}{where}", math.inf, subject.bound)
