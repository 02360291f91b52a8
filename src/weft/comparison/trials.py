"""The search for a learning rate within one attempt.

Every model tries as many rates, on text that no figure is measured on, and more of them where a best rate lies at the
edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.comparison.contestants import Contestant
from weft.comparison.jobs import Outcome
from weft.comparison.results import Trial
from weft.comparison.study_settings import Side, TrialSettings, beyond

Try: TypeAlias = Callable[[Contestant, float], Outcome]
"""Runs a trial of a model with a learning rate, with the seeds of the attempt."""


@dataclass(frozen=True)
class Tuning:
    """The result of the trials of one model in one attempt.

    Attributes:
        trials: by rising learning rate; empty when none were made.
        lr: the best; the model's own when none were made or none finished.
        edge: the best lies at the edge of those that were tried.
        outcomes: of the trials, by learning rate.
    """

    trials: tuple[Trial, ...]
    lr: float
    edge: bool
    outcomes: Mapping[float, Outcome]

    @property
    def best(self) -> float | None:
        """Bits per byte of the best trial on the tuning text."""
        return next((trial.bits_per_byte for trial in self.trials if trial.lr == self.lr), None)

    @property
    def interrupted(self) -> Trial | None:
        """A trial that was interrupted: nothing is chosen before it has been made."""
        return next((trial for trial in self.trials if trial.status == "interrupted"), None)


def tune(models: Sequence[Contestant], settings: TrialSettings, attempt: Try) -> dict[str, Tuning]:
    """Try learning rates for every model, and choose one for each.

    While the best of some model lies at the edge, every model tries one rate more on that side, up to
    ``settings.widest`` on each: so all have the same effort, and none is favoured by where the rates were begun.

    Args:
        models: that gradients train, their steps settled.
    """
    rates = {each.name: settings.rates(each.run.training.optimizer.lr) for each in models}
    if settings.number < 2:
        return {name: Tuning((), own[0], False, {}) for name, own in rates.items()}
    outcomes: dict[str, dict[float, Outcome]] = {each.name: {} for each in models}
    left: dict[Side, int] = {"below": settings.widest, "above": settings.widest}
    while True:
        for each in models:
            for lr in rates[each.name]:
                if lr not in outcomes[each.name]:
                    outcomes[each.name][lr] = attempt(each, lr)
        found = {each.name: _tuning(each, outcomes[each.name]) for each in models}
        sides = [side for side in left if left[side] and any(_wants(each, side) for each in found.values())]
        if not sides:
            return found
        for side in sides:
            left[side] -= 1
            for known in rates.values():
                known.insert(0 if side == "below" else len(known), beyond(known, side))


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The fewest bits per byte; the lower learning rate of equals."""
    finished = [trial for trial in trials if trial.bits_per_byte is not None]
    return min(finished, key=lambda trial: (trial.bits_per_byte, trial.lr), default=None)


def _tuning(model: Contestant, outcomes: Mapping[float, Outcome]) -> Tuning:
    trials = tuple(Trial(lr, found.status, found.tuning_bits_per_byte, found.seconds, found.note)
                   for lr, found in sorted(outcomes.items()))
    best = best_of(trials)
    if best is None:
        return Tuning(trials, model.run.training.optimizer.lr, False, dict(outcomes))
    return Tuning(trials, best.lr, best in (trials[0], trials[-1]), dict(outcomes))


def _wants(found: Tuning, side: Side) -> bool:
    """Whether a better rate may lie on this side: the best is the last there. Where all diverged, it lies below."""
    if all(trial.status == "diverged" for trial in found.trials):
        return side == "below"
    return found.edge and found.lr == found.trials[0 if side == "below" else -1].lr
