"""Every registered part, found by discovery, obeys the laws. There is no skip list."""

from __future__ import annotations

import re

import pytest
import torch

from weft.core.declarations import Trait
from weft.core.layer import LayerState
from weft.core.model import Encoder, Model
from weft.core.part_config import PartConfig
from weft.core.span import Span
from weft.laws import LAWS, Report, every_example, examine, subject_of
from weft.laws.subject import Subject

LAWLESS_GROUPS = {"tokenizer", "optimizer", "schedule", "task", "rewrite", "benchmark"}
"""Groups that no law is about; everything else must have a subject."""

ALL = {("ragged", r"counts \[11, 5, 1, 0\]"), ("packed", r"documents begin at .*\]$")}
STATEFUL = {
    ("split", r"pieces \d(\+1)+(, without gradients)?$"), ("split", r"pieces 3\+4\+0\+4"),
    ("split", r"pieces .*reserved buffers and facts"),
    ("split", r"rows advance by"), ("causality", r"tokens from 1 on replaced"), ("selection", r"rows \[2, 0, 0, 1\]"),
    ("selection", r"another sequence"), ("persistence", r"state saved and restored"), ("bounded", r"undeclared"),
    ("coordinates", r"fractions, without"), ("coordinates", r"fractions, with"), ("forks", r"clone, reserved"),
    ("saving", r"after an empty piece"), ("saving", r"no row advanced, room reserved"), ("reuse", r"passed again"),
    ("memory", r"keeps alive"), ("memory", r"modules hold"),
}
PACKED_PIECES = {("packed", r"pieces 3\+1\+0\+3\+3\+1"), ("packed", r"pieces 4\+1\+2\+4"),
                 ("packed", r"rows advance by \[\[0, 1, 0\]")}
GRADIENTS = {("split gradients", r"pieces 3\+4\+0\+4"), ("ragged gradients", "NaN|any id"),
             ("packed gradients", r"documents begin at .*\]$"), ("packed gradients", r"counts \[9, 8, 2\]$"),
             ("slopes", "")}
"""What must have been tried: the name of the law and what its case says. A law that is silently skipped fails here."""

COMPILED = "compile"
"""The law that takes a second for each subject, and is run on the first example of each part."""

COMPILED_AS_MODELS = {"mixer", "feedforward", "model"}
"""Groups whose parts `integration/test_compile.py` compiles as models: loss and gradients, packed documents, steps."""

EXAMPLES = [pytest.param(name, config, id=name) for name, config in every_example()]


@pytest.mark.parametrize(("name", "config"), EXAMPLES)
def test_laws_hold(name: str, config: PartConfig) -> None:
    torch.manual_seed(0)
    subject = subject_of(config, name)
    if subject is None:
        assert config.group in LAWLESS_GROUPS, f"{name} has no subject for the laws"
        return
    report = examine(subject, laws=tuple(law for law in LAWS if law != COMPILED))
    assert not untried(subject, report)
    assert report.holds, "\n".join(str(finding) for finding in report.broken()[:10])


@pytest.mark.parametrize(("name", "config"), EXAMPLES)
def test_a_state_lies_in_memory_as_one_read_from_a_file(name: str, config: PartConfig) -> None:
    """A state that goes on from a file gives the same bits only where its tensors are multiplied by the same kernels,
    which libraries choose by the layout too."""
    torch.manual_seed(0)
    subject = subject_of(config, name)
    if subject is None or not subject.stateful:
        return
    generator = torch.Generator().manual_seed(0)
    x, memory = subject.inputs(2, subject.steps, generator), subject.memory(2, generator)
    for capacity in (None, subject.steps):
        state: LayerState | None = subject.start(2, memory, capacity, subject.steps)
        for piece in x.split([4, 1, subject.steps - 5], dim=1):
            with torch.no_grad():
                state = subject.call(piece, state, Span()).state
            assert state is not None, "a call with a state returns one"
            assert [path for path, (tensor, _) in state.tensors().items() if not tensor.is_contiguous()] == []


@pytest.mark.parametrize("name", [name for name, config in every_example()
                                  if name.endswith(".0") and config.group not in LAWLESS_GROUPS | COMPILED_AS_MODELS])
def test_every_part_compiles_whole(name: str) -> None:
    torch.manual_seed(0)
    subject = subject_of(dict(every_example())[name], name)
    assert subject is not None
    report = examine(subject, laws=(COMPILED,))
    assert report.findings or not subject.differentiable
    assert report.holds, "\n".join(str(finding) for finding in report.broken())


def untried(subject: Subject, report: Report) -> list[tuple[str, str]]:
    """Cases that every part must be examined in and that the report does not contain."""
    wanted = set(ALL)
    if subject.differentiable:
        wanted |= {case for case in GRADIENTS if subject.stateful or not case[0].startswith("split")}
        wanted |= {("continuation", "reserved")} if subject.stateful else set()
    if Trait.BATCH_STATISTICS not in subject.traits:
        wanted.add(("training", "without dropout, whole"))
    if Trait.DISCRETE_CHOICE in subject.traits:
        wanted.add(("seeds", "weights 7, split"))
    if isinstance(subject.module, Encoder):
        read = "patches" if "patches" in subject.module.reads() else "tokens"
        wanted.add(("inputs", f"other {read} in the padding"))
    if isinstance(subject.module, Model) and subject.module.head is not None:
        wanted.add(("head", "a row of 1 tokens alone"))
    if subject.stateful:
        wanted |= STATEFUL | (PACKED_PIECES if Trait.DECLARED_LENGTH not in subject.traits else set())
    return sorted((law, case) for law, case in wanted
                  if not any(finding.law == law and re.search(case, finding.case) for finding in report.findings))
