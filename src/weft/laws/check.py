"""`check`: the laws, run for a user on the model in front of her."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from weft.core.model import LanguageModel, ModelConfig
from weft.core.traits import Trait
from weft.laws.discovery import subject_of
from weft.laws.report import Finding, Report
from weft.laws.run import LAWS, examine
from weft.laws.subject import Subject, model_subject
from weft.laws.twin import shrink

OWN_BOUNDS = {torch.float64: 1e-8, torch.float32: 5e-4, torch.bfloat16: 2.5e-1, torch.float16: 5e-2}
"""Bounds on a real model in its own dtype, relative to its largest logit. A dozen layers multiply the rounding of one
by about as much: float32 1e-7 x some thousands of terms, bfloat16 4e-3 x some dozens."""

OWN_LAWS = ("split", "causality", "ragged", "selection", "packed", "readout")
"""What can be compared in any dtype; the others need float64 or do not depend on the weights."""


@dataclass(frozen=True)
class CheckResult:
    """What `check` found.

    Attributes:
        twin: the laws on a shrunken float64 twin of the configuration.
        changes: what was shrunk, in words.
        own: the laws on the model itself in its own dtype; None when only a configuration was given.
        dtype: the model's own dtype, for ``own``.
        seconds: of everything.
    """

    twin: Report
    changes: str
    own: Report | None
    dtype: str
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every law holds."""
        return self.twin.holds and (self.own is None or self.own.holds)


def check(config: ModelConfig, model: LanguageModel | None = None, *, seed: int = 0, sum_error: float = 0.0,
          on_law: Callable[[str, str], None] | None = None) -> CheckResult:
    """Run the laws.

    Args:
        config: the configuration to shrink into a twin.
        model: the real model, when there is one; its gradients are not taken.
        seed: of the twin's weights, of the tokens and of the cuts.
        sum_error: by how much the logarithm of a sum of the model's probabilities may miss 0, where they were given in
            decimal digits.
        on_law: called with the subject and the law that begins, for progress.
    """
    begun = time.monotonic()
    twin = shrink(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        subject = subject_of(twin.config, "twin")
    assert subject is not None, "a model is a subject"
    found = _run(subject, tuple(LAWS), seed, on_law)
    own = None if model is None else _own(model, seed, sum_error, on_law)
    dtype = "" if model is None else str(_dtype(model)).removeprefix("torch.")
    return CheckResult(found, twin.changes, own, dtype, time.monotonic() - begun)


def _run(subject: Subject, laws: tuple[str, ...], seed: int, on_law: Callable[[str, str], None] | None) -> Report:
    findings: list[Finding] = []
    for law in laws:
        if on_law is not None:
            on_law(subject.name, law)
        findings += examine(subject, seed, (law,)).findings
    return Report(subject.name, tuple(findings))


def _own(model: LanguageModel, seed: int, sum_error: float, on_law: Callable[[str, str], None] | None) -> Report:
    subject = model_subject("model", model, bound=OWN_BOUNDS.get(_dtype(model), OWN_BOUNDS[torch.float32]))
    quiet = replace(subject, thorough=False, traits=subject.traits | {Trait.NOT_DIFFERENTIABLE})
    found = _run(quiet, OWN_LAWS, seed, on_law)
    return Report(found.subject, tuple(replace(each, bound=each.bound + sum_error) if each.law == "readout" else each
                                       for each in found.findings))


def _dtype(model: LanguageModel) -> torch.dtype:
    return next((p.dtype for p in model.parameters()), torch.float64)
