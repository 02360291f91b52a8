"""The search for a learning rate: the same number of trials for each model, judged on text that is not reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weft.comparison.contestants import Contestant
from weft.comparison.jobs import Outcome
from weft.comparison.results import Trial
from weft.comparison.study import Seeds, TrialSettings

Try: TypeAlias = Callable[[Contestant, float, Seeds, int], Outcome]
"""Runs a trial: the model, its learning rate, its seeds, and the number of steps."""


@dataclass(frozen=True)
class Search:
    """What the trials of one model found.

    Attributes:
        trials: by rising learning rate; empty when none were made.
        lr: the best; the model's own when none were made or none finished.
        edge: the best lies at the edge of those that were tried.
        repeats: bits per byte with the best learning rate, for each pair of seeds that it was tried with.
        notes: what a reader must know.
    """

    trials: tuple[Trial, ...]
    lr: float
    edge: bool
    repeats: tuple[float, ...]
    notes: tuple[str, ...]


def search(contestant: Contestant, settings: TrialSettings, seeds: tuple[Seeds, Seeds], attempt: Try) -> Search:
    """Try learning rates and choose.

    Args:
        contestant: a model that is trained by gradients, its steps settled.
        settings: of the study.
        seeds: of the trials, and of the one repetition that shows how much seeds matter where the study does not say.
        attempt: runs a trial.
    """
    own, steps = contestant.run.training.optimizer.lr, contestant.run.training.steps
    assert steps is not None, "steps are settled before the trials"
    if settings.number < 2 and settings.values is None:
        return Search((), own, False, (), ())
    short = max(1, round(settings.share * steps))
    tried: list[Trial] = []
    for lr in settings.rates(own):
        outcome = attempt(contestant, lr, seeds[0], short)
        tried.append(Trial(lr, outcome.status, outcome.bits_per_byte, outcome.seconds, outcome.note))
    best = best_of(tried)
    if best is None:
        note = f"{contestant.name}: no trial finished, so it keeps its own learning rate, {own:g}."
        return Search(tuple(tried), own, False, (), (note,))
    repeats = [trial.bits_per_byte for trial in (best,) if trial.bits_per_byte is not None]
    if settings.deviation is None:
        again = attempt(contestant, best.lr, seeds[1], short)
        repeats += [] if again.bits_per_byte is None else [again.bits_per_byte]
    return Search(tuple(tried), best.lr, at_edge(tried, best), tuple(repeats), ())


def best_of(trials: list[Trial]) -> Trial | None:
    """The fewest bits per byte; the lower learning rate of equals."""
    finished = [trial for trial in trials if trial.bits_per_byte is not None]
    return min(finished, key=lambda trial: (trial.bits_per_byte, trial.lr), default=None)


def at_edge(trials: list[Trial], best: Trial) -> bool:
    """Whether the best is the lowest or highest learning rate that was tried: a better one may lie beyond."""
    rates = sorted(trial.lr for trial in trials)
    return best.lr in (rates[0], rates[-1])
