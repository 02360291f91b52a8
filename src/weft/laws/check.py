"""`check`: the laws, run for a user on the model in front of her."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import final

import torch

from weft.core.layer import borders_of
from weft.core.model import Model, ModelConfig, parameter_count
from weft.core.traits import Trait
from weft.laws.discovery import subject_of
from weft.laws.faults import Fault, Runner, faults
from weft.laws.length import LEAST, allowed, length_past
from weft.laws.long_laws import LONG_LAWS, OWN_CHOOSING_LAWS, OWN_LONG_LAWS
from weft.laws.report import Report
from weft.laws.run import LAWS, examine, examine_far, examine_long
from weft.laws.subject import Subject, whole_subject
from weft.laws.twin import NARROW, SMALL, narrowed, shrink, widened

OWN_BOUNDS = {torch.float64: 1e-8, torch.float32: 5e-4, torch.bfloat16: 2.5e-1, torch.float16: 5e-2}
"""Bounds on a real model in its own dtype, relative to its largest logit. A dozen layers multiply the rounding of one
by about as much: float32 1e-7 x some thousands of terms, bfloat16 4e-3 x some dozens."""

OWN_LAWS = ("split", "causality", "ragged", "selection", "packed", "readout", "rewriting")
"""What can be compared in any dtype; the others need float64 or do not depend on the weights."""

LONG, LONGEST = 768, 2_048
"""Tokens of the longest rows that the laws are run on unasked: many comparisons of each with gradients, and a few of
each. What attention of a thousand keys does wrong, on whatever road, the second finds."""

WORK, MOST_WORK = 8e9, 8e10
"""Parameters times tokens of a row that take some seconds, and of one that goes past `LEAST` at least."""

FEW_PARAMETERS = 2_000_000
"""Up to so many, a twin of the configuration's own widths is run in float64."""


@dataclass(frozen=True)
class CheckResult:
    """What `check` found.

    Attributes:
        twin: the laws on a shrunken float64 twin of the configuration.
        changes: what was shrunk, in words.
        long: the laws on long rows of a twin that reaches as far as the configuration.
        far: a few comparisons of each on rows of some thousand tokens, and stability where the state is bounded.
        wide: the laws on a twin as wide as the configuration, with random weights; None where the model itself is.
        wide_changes: what was shrunk there.
        own: the laws on the model itself in its own dtype; None when only a configuration was given.
        own_long: the same on long rows.
        border: the longest border that the configuration has, in tokens.
        faults: the defects behind the laws that do not hold, each once.
        dtype: the model's own dtype, for ``own``.
        seconds: of everything.
    """

    twin: Report
    changes: str
    long: Report
    far: Report
    wide: Report | None
    wide_changes: str
    own: Report | None
    own_long: Report | None
    border: int
    faults: tuple[Fault, ...]
    dtype: str
    seconds: float

    def reports(self) -> tuple[Report, ...]:
        """Every report there is."""
        found = (self.twin, self.long, self.far, self.wide, self.own, self.own_long)
        return tuple(report for report in found if report is not None)

    @property
    def holds(self) -> bool:
        """Whether every law holds."""
        return all(report.holds for report in self.reports())


def check(config: ModelConfig, model: Model | None = None, *, seed: int = 0, sum_error: float = 0.0,
          length: int | None = None, on_law: Callable[[str, str], None] | None = None) -> CheckResult:
    """Run the laws.

    Args:
        config: the configuration to shrink into twins.
        model: the real model, when there is one; its gradients are not taken.
        seed: of the twins' weights, of the tokens and of the cuts.
        sum_error: by how much the logarithm of a sum of the model's probabilities may miss 0, where they were given in
            decimal digits.
        length: tokens of the long rows; None: past the longest border, as far as that takes seconds.
        on_law: called with the subject and the law that begins, for progress.
    """
    begun = time.monotonic()
    run = _Examination(seed, length, on_law)
    border = longest_border(config)
    small = shrink(config)
    twin = run.twin(small.config)
    long, far = run.long(config, border), run.far(config)
    changes, wide, own, own_long = "", None, None, None
    if model is None:
        wide, changes = run.wide(config, small.config)
    else:
        own, own_long = run.own(model, sum_error), run.own_long(model)
    found = faults(run.examined, {name: law.__doc__ for name, law in LAWS.items()})
    dtype = "" if model is None else str(_dtype(model)).removeprefix("torch.")
    return CheckResult(twin, small.changes, long, far, wide, changes, own, own_long, border, tuple(found), dtype,
                       time.monotonic() - begun)


def longest_border(config: ModelConfig) -> int:
    """The longest border of the configuration, in tokens: its context, or what a part in it declares."""
    return max(config.context, *borders_of(shrink(config, NARROW).config.build()), 0)


def _past(border: int) -> int:
    return math.ceil(1.5 * max(border, LEAST))


@final
class _Examination:
    """Subjects made from a configuration or a model, and what was run on each."""

    def __init__(self, seed: int, length: int | None, on_law: Callable[[str, str], None] | None) -> None:
        self._seed, self._length, self._on_law = seed, length, on_law
        self.examined: list[tuple[Subject, Report, Runner]] = []

    def twin(self, config: ModelConfig) -> Report:
        """Every law on the short rows of a twin."""
        return self._short(self._built(config, "twin"), tuple(LAWS))

    def long(self, config: ModelConfig, border: int) -> Report:
        """Every law on long rows of a narrow twin."""
        steps = self._length or min(LONG, _past(border))
        subject = self._built(narrowed(config, steps).config, "long rows")
        return self._at_length(subject, allowed(subject, steps), tuple(LONG_LAWS))

    def far(self, config: ModelConfig) -> Report:
        """Every law on longer rows still, and stability where the state is bounded. Rows of a length that was asked for
        are those of `long`."""
        steps = self._length or LONGEST
        subject = replace(self._built(narrowed(config, steps).config, "far"), thorough=False)
        past = self._at_length(subject, allowed(subject, steps), () if self._length else tuple(LONG_LAWS))
        subject = self._built(shrink(config, replace(SMALL, repeats=1)).config, "far")

        def stable(part: Subject, _laws: Collection[str] = ()) -> Report:
            self._tell(part.name, "stability")
            return examine_far(part, self._seed)

        found = self._keep(subject, stable(subject), stable)
        return replace(past, findings=past.findings + found.findings)

    def wide(self, config: ModelConfig, small: ModelConfig) -> tuple[Report | None, str]:
        """Some laws on short rows of a twin of the configuration's own widths, and what else it changes."""
        twin = widened(config)
        if twin is None or twin.config == small:
            return None, ""
        subject = self._built(twin.config, "full width")
        if parameter_count(subject.module) > FEW_PARAMETERS:
            subject = self._built(twin.config, "full width", torch.float32)
            subject = replace(subject, bound=OWN_BOUNDS[torch.float32])
        return self._short(_quiet(subject), OWN_LAWS), twin.changes

    def own(self, model: Model, sum_error: float) -> Report:
        """What can be compared in any dtype, on the model itself."""
        return self._short(self._model(model), OWN_LAWS, sum_error)

    def own_long(self, model: Model) -> Report:
        """The same on long rows, as long as the size of the model allows."""
        subject, size = self._model(model), max(parameter_count(model), 1)
        past = length_past(subject, LONGEST)
        least = min(past, _past(0), int(MOST_WORK / size))
        steps = self._length or max(12, min(past, max(least, int(WORK / size))))
        laws = OWN_CHOOSING_LAWS if Trait.DISCRETE_CHOICE in subject.traits else OWN_LONG_LAWS
        return self._at_length(subject, allowed(subject, steps), laws)

    def _model(self, model: Model) -> Subject:
        bound = OWN_BOUNDS.get(_dtype(model), OWN_BOUNDS[torch.float32])
        return _quiet(whole_subject("model", model, bound=bound))

    def _built(self, config: ModelConfig, name: str, dtype: torch.dtype = torch.float64) -> Subject:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            subject = subject_of(config, name, dtype=dtype)
        assert subject is not None, "a model is a subject"
        return subject

    def _short(self, subject: Subject, laws: tuple[str, ...], sum_error: float = 0.0) -> Report:
        def run(part: Subject, wanted: Collection[str] = laws) -> Report:
            found = (finding for law in laws if law in wanted and self._tell(part.name, law)
                     for finding in examine(part, self._seed, (law,)).findings)
            return Report(part.name, tuple(replace(each, bound=each.bound + sum_error) if each.law == "readout" else
                                           each for each in found), part.steps)

        return self._keep(subject, run(subject), run)

    def _at_length(self, subject: Subject, steps: int, laws: tuple[str, ...]) -> Report:
        def run(part: Subject, wanted: Collection[str] = laws) -> Report:
            self._tell(part.name, f"{steps:,} tokens")
            return examine_long(part, steps, self._seed, tuple(law for law in laws if law in wanted))

        return self._keep(subject, run(subject), run)

    def _keep(self, subject: Subject, report: Report, run: Runner) -> Report:
        self.examined.append((subject, report, run))
        return report

    def _tell(self, who: str, law: str) -> bool:
        if self._on_law is not None:
            self._on_law(who, law)
        return True


def _quiet(subject: Subject) -> Subject:
    """Without gradients, and with a few combinations instead of all."""
    return replace(subject, thorough=False, traits=subject.traits | {Trait.NOT_DIFFERENTIABLE})


def _dtype(model: Model) -> torch.dtype:
    return next((p.dtype for p in model.parameters()), torch.float64)
