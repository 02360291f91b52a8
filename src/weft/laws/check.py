"""`check`: run the laws on a configuration or a model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import final

import torch

from weft.core.declarations import Trait
from weft.core.layer import borders_of
from weft.core.model import Model, ModelConfig, parameter_count
from weft.laws.discovery import subject_of
from weft.laws.faults import Fault, Runner, faults
from weft.laws.length import LEAST, allowed, length_past
from weft.laws.long_laws import LONG_LAWS, OWN_CHOOSING_LAWS, OWN_LONG_LAWS
from weft.laws.report import Finding, Report
from weft.laws.run import LAWS, examine, examine_far, examine_long
from weft.laws.subject import Subject, whole_subject
from weft.laws.twin import NARROW, SMALL, narrowed, shrink, widened

OWN_BOUNDS = {torch.float64: 1e-8, torch.float32: 5e-4, torch.bfloat16: 2.5e-1, torch.float16: 5e-2}
"""Bounds for a real model in its own dtype, relative to its largest logit. A dozen layers have about a dozen times the
rounding error of one: in float32 1e-7 times some thousands of terms, in bfloat16 4e-3 times some dozens."""

OWN_LAWS = ("split", "causality", "ragged", "selection", "packed", "readout", "rewriting")
"""Laws that can be compared in any dtype; the others need float64 or do not depend on the weights."""

LONG, LONGEST = 768, 4_200
"""Tokens of the default long rows: first with many comparisons and gradients, then with few comparisons. The second
length exposes attention that ignores keys beyond the last thousand, with or without a state, and what begins at 2,048
or at 4,096 tokens of one call."""

WORK, MOST_WORK = 8e9, 8e10
"""Parameters times tokens of a row that runs in some seconds, and the most that a row a little longer than `LEAST` may
cost."""

COMPILED = ("compile",)
"""Laws whose time is that of tracing every layer, and that a second equal block cannot break."""

ONCE = replace(SMALL, repeats=1)
"""The sizes of a small twin that repeats no block."""

FEW_PARAMETERS = 2_000_000
"""A twin of the configuration's own widths with at most so many parameters runs in float64, a larger one in float32."""


@dataclass(frozen=True)
class CheckResult:
    """The reports of `check` and the defects behind them.

    Attributes:
        twin: the laws on a shrunken float64 twin of the configuration.
        changes: what the twin shrinks, in words.
        long: the laws on long rows of a narrow twin with the configuration's own windows and lengths.
        far: a few comparisons of each law on rows of some thousand tokens, and stability where the state is bounded.
        wide: the laws on a twin with the configuration's own widths and random weights; None if a model was given.
        wide_changes: what that twin shrinks, in words.
        own: the laws on the model itself in its own dtype; None if only a configuration was given.
        own_long: the same on long rows.
        border: the longest border that the configuration has, in tokens.
        faults: the defects behind the broken laws, each once.
        dtype: the model's own dtype, for ``own``.
        seconds: the duration of the whole check.
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
        """The reports that are not None."""
        reports = (self.twin, self.long, self.far, self.wide, self.own, self.own_long)
        return tuple(report for report in reports if report is not None)

    @property
    def holds(self) -> bool:
        """Whether every law holds."""
        return all(report.holds for report in self.reports())


def check(config: ModelConfig, model: Model | None = None, *, seed: int = 0, sum_error: float = 0.0,
          length: int | None = None, on_law: Callable[[str, str], None] | None = None) -> CheckResult:
    """Run the laws on twins of a configuration and, if a model is given, on the model itself.

    Args:
        config: the configuration to shrink into twins.
        model: the real model, or None; no gradients of it are computed.
        seed: seeds the twins' weights, the tokens and the cuts.
        sum_error: the largest deviation from 0 of the logarithm of a sum of the model's probabilities that rounding to
            decimal digits in its file explains.
        length: tokens of the long rows; None: past the longest border, as far as that takes some seconds.
        on_law: called for progress with the name of the subject and of the law that begins.
    """
    begun = time.monotonic()
    run = _Examination(seed, length, on_law)
    border = longest_border(config)
    small, once = shrink(config), shrink(config, ONCE)
    twin = run.twin(small.config, once.config)
    long, far = run.long(config, border), run.far(config, once.config)
    changes, wide, own, own_long = "", None, None, None
    if model is None:
        wide, changes = run.wide(config, small.config)
    else:
        own, own_long = run.own(model, sum_error), run.own_long(model)
    defects = faults(run.examined, {name: law.__doc__ for name, law in LAWS.items()})
    dtype = "" if model is None else str(_dtype(model)).removeprefix("torch.")
    return CheckResult(twin, small.changes, long, far, wide, changes, own, own_long, border, tuple(defects), dtype,
                       time.monotonic() - begun)


def longest_border(config: ModelConfig) -> int:
    """The longest border of the configuration, in tokens: its context, or the longest that a part declares."""
    return max(config.context, *borders_of(shrink(config, NARROW).config.build()), 0)


def _past(border: int) -> int:
    return math.ceil(1.5 * max(border, LEAST))


@final
class _Examination:
    """Builds subjects from a configuration or a model, runs laws on them, and collects the reports."""

    def __init__(self, seed: int, length: int | None, on_law: Callable[[str, str], None] | None) -> None:
        self._seed, self._length, self._on_law = seed, length, on_law
        self.examined: list[tuple[Subject, Report, Runner]] = []

    def twin(self, small: ModelConfig, once: ModelConfig) -> Report:
        """Every law on the short rows of a twin; those of `COMPILED` on the twin that repeats no block."""
        subject, run = self._built(small, "twin"), self._runner(tuple(LAWS))
        report, compiled = run(subject, set(LAWS) - set(COMPILED)), run(self._built(once, "twin"), COMPILED)
        return self._keep(subject, replace(report, findings=report.findings + compiled.findings), run)

    def long(self, config: ModelConfig, border: int) -> Report:
        """Every long law on long rows of a narrow twin."""
        steps = self._length or min(LONG, _past(border))
        subject = self._built(narrowed(config, steps).config, "long rows")
        return self._at_length(subject, allowed(subject, steps), tuple(LONG_LAWS))

    def far(self, config: ModelConfig, once: ModelConfig) -> Report:
        """Every long law on even longer rows, unless the user has chosen their length, which is then that of `long`;
        and stability where the state is bounded."""
        steps = self._length or LONGEST
        subject = replace(self._built(narrowed(config, steps).config, "far"), thorough=False)
        report = self._at_length(subject, allowed(subject, steps), () if self._length else tuple(LONG_LAWS))
        subject = self._built(once, "far")

        def stable(part: Subject, _laws: Collection[str] = ()) -> Report:
            self._announce(part.name, "stability")
            return examine_far(part, self._seed)

        stability = self._keep(subject, stable(subject), stable)
        return replace(report, findings=report.findings + stability.findings)

    def wide(self, config: ModelConfig, small: ModelConfig) -> tuple[Report | None, str]:
        """`OWN_LAWS` on short rows of a twin of the configuration's own widths, and its changes in words."""
        twin = widened(config)
        if twin is None or twin.config == small:
            return None, ""
        subject = self._built(twin.config, "full width")
        if parameter_count(subject.module) > FEW_PARAMETERS:
            subject = self._built(twin.config, "full width", torch.float32)
            subject = replace(subject, bound=OWN_BOUNDS[torch.float32])
        return self._short(_without_gradients(subject), OWN_LAWS), twin.changes

    def own(self, model: Model, sum_error: float) -> Report:
        """`OWN_LAWS` on short rows of the model itself."""
        return self._short(self._model(model), OWN_LAWS, sum_error)

    def own_long(self, model: Model) -> Report:
        """Long laws on rows of the model itself, as long as its size allows."""
        subject, size = self._model(model), max(parameter_count(model), 1)
        past = length_past(subject, LONGEST)
        least = min(past, _past(0), int(MOST_WORK / size))
        steps = self._length or max(12, min(past, max(least, int(WORK / size))))
        laws = OWN_CHOOSING_LAWS if Trait.DISCRETE_CHOICE in subject.traits else OWN_LONG_LAWS
        return self._at_length(subject, allowed(subject, steps), laws)

    def _model(self, model: Model) -> Subject:
        bound = OWN_BOUNDS.get(_dtype(model), OWN_BOUNDS[torch.float32])
        return _without_gradients(whole_subject("model", model, bound=bound))

    def _built(self, config: ModelConfig, name: str, dtype: torch.dtype = torch.float64) -> Subject:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            subject = subject_of(config, name, dtype=dtype)
        assert subject is not None, "a model is a subject"
        return subject

    def _short(self, subject: Subject, laws: tuple[str, ...], sum_error: float = 0.0) -> Report:
        run = self._runner(laws, sum_error)
        return self._keep(subject, run(subject, laws), run)

    def _runner(self, laws: tuple[str, ...], sum_error: float = 0.0) -> Runner:
        """A function that runs the selected ones of ``laws`` on short rows of a subject."""
        def run(part: Subject, selected: Collection[str]) -> Report:
            findings: list[Finding] = []
            for law in (law for law in laws if law in selected):
                self._announce(part.name, law)
                extra = sum_error if law == "readout" else 0.0
                findings += (replace(each, bound=each.bound + extra)
                             for each in examine(part, self._seed, (law,)).findings)
            return Report(part.name, tuple(findings), part.steps)

        return run

    def _at_length(self, subject: Subject, steps: int, laws: tuple[str, ...]) -> Report:
        def run(part: Subject, selected: Collection[str] = laws) -> Report:
            self._announce(part.name, f"{steps:,} tokens")
            return examine_long(part, steps, self._seed, tuple(law for law in laws if law in selected))

        return self._keep(subject, run(subject), run)

    def _keep(self, subject: Subject, report: Report, run: Runner) -> Report:
        self.examined.append((subject, report, run))
        return report

    def _announce(self, subject: str, law: str) -> None:
        if self._on_law is not None:
            self._on_law(subject, law)


def _without_gradients(subject: Subject) -> Subject:
    """The subject without gradients, and with a few random combinations instead of all."""
    return replace(subject, thorough=False, traits=subject.traits | {Trait.NOT_DIFFERENTIABLE})


def _dtype(model: Model) -> torch.dtype:
    return next((p.dtype for p in model.parameters()), torch.float64)
