"""What a reader of a study must know: how it was done, and what to beware of."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from weft.comparison.contestants import Contestant
from weft.comparison.measures import BLOCKS, FEWEST_DOCUMENTS
from weft.comparison.results import CorpusFacts, Detectable, Entry, Matched
from weft.comparison.statistics import detectable_difference, paired_deviation
from weft.comparison.study import FEWEST_TRIALS, StudyConfig
from weft.comparison.texts import StudyTexts
from weft.comparison.trials import Search


def detectable_in(study: StudyConfig, searches: Mapping[str, Search], pairs: int) -> tuple[tuple[Detectable, ...], str]:
    """The smallest difference that the runs can be expected to show, known before the first of them, and what it
    rests on."""
    runs, stated = len(study.seeds), study.trials.deviation
    if runs < 2:
        return (_detectable(None, study, pairs),
                "A single run per model cannot tell a difference from chance.")
    test = (f"That is with a power of 0.8, in the paired t test over {runs} runs at level "
            f"{1 - study.confidence:.2g} / {pairs} (the first step of Holm's correction)")
    if stated is not None:
        return (_detectable(stated, study, pairs),
                f"{test}, for a standard deviation of {stated:g} bits per byte between runs, which the study states.")
    deviation = paired_deviation({name: found.repeats for name, found in searches.items()})
    if deviation is None:
        return (_detectable(None, study, pairs),
                "Not known: no two models have repeated trials, and the study states no deviation.")
    return (_detectable(deviation, study, pairs),
            f"{test}, for a standard deviation of {deviation:.2g} bits per byte between runs, as the best trial of "
            "each model, repeated with other seeds, shows it; trials are shorter than runs, so it is a rough figure.")


def _detectable(deviation: float | None, study: StudyConfig, pairs: int) -> tuple[Detectable, ...]:
    return tuple(Detectable(runs, None if deviation is None else
                            detectable_difference(deviation, runs, study.confidence, pairs))
                 for runs in sorted({3, 5, 10, len(study.seeds)}))


def protocol_of(study: StudyConfig, texts: StudyTexts, models: Sequence[Contestant]) -> tuple[str, ...]:
    """How it was done."""
    contexts = sorted({each.run.context for each in models})
    windows = " or ".join(f"{context:,}" for context in contexts)
    clusters = ("by document" if texts.test_documents >= FEWEST_DOCUMENTS
                else f"by block ({BLOCKS} of about equal bytes, as the text has {texts.test_documents} documents)")
    return (
        "Bits per byte: summed negative log2-likelihood of the test text over its UTF-8 bytes, every token scored "
        f"once, in windows of {windows} tokens that start from an empty state and do not see across documents; "
        "the end of a document, where the tokenizer marks it, counts as a token of 0 bytes.",
        texts.how,
        "The figure is of the last checkpoint; none is chosen by its figure.",
        f"Curves, gaps and evaluations at other lengths use {study.measure.curve_bytes:,} bytes of the test text at "
        "most, the same documents for every model.",
        _trials(study),
        f"{len(study.seeds)} runs of every model; run i of each has the same pair of seeds, one for the initial "
        "weights and dropout, one for the order of the data. Models take turns, so that a study that stops "
        "early is fair.",
        f"Intervals of differences: Student's t over paired runs, and a bootstrap of {study.measure.resamples:,} "
        f"resamples clustered {clusters}. A pair's p-value is the larger of the two, corrected after Holm over all "
        f"pairs; a pair is tied where it is above {1 - study.confidence:.2g}.",
        "FLOPs: forward and backward pass, three times the forward pass; matrix products, convolutions, Fourier "
        "transforms and scans, attention only where its mask allows. Seconds: of training steps alone, without "
        "evaluation and saving.",
        _memory())


def notes_of(study: StudyConfig, models: Sequence[Contestant], entries: Sequence[Entry],
             counted_tokens: int | None, corpus: CorpusFacts, matched: Sequence[Matched]) -> tuple[str, ...]:
    """What to beware of."""
    notes = [*_effort_notes(study, models), *_missed_notes(matched),
             *_counted_notes(models, counted_tokens, corpus)]
    for entry in entries:
        failed = [run for run in entry.runs if run.status in ("failed", "diverged")]
        if failed:
            notes.append(f"{entry.name}: {len(failed)} of {len(entry.runs)} runs did not finish ({failed[0].note})"
                         + ("; its mean is of the others." if entry.finished else "."))
        pending = sum(run.status == "pending" for run in entry.runs)
        if pending:
            notes.append(f"{entry.name}: {pending} of {len(entry.runs)} runs are still to come.")
        if entry.edge:
            notes.append(f"{entry.name}: the best learning rate is the lowest or highest that was tried, so a better "
                         "one may lie beyond.")
    return tuple(notes)


def _effort_notes(study: StudyConfig, models: Sequence[Contestant]) -> list[str]:
    notes, trained = [], [each for each in models if each.trained]
    if study.trials.number < FEWEST_TRIALS and trained:
        none = study.trials.number < 2 and study.trials.values is None
        tried = "No learning rate was" if none else f"Only {study.trials.number} learning rates were"
        notes.append(f"{tried} tried for each model; a study that tunes tries at least {FEWEST_TRIALS}.")
    if len(study.seeds) < 3:
        notes.append(f"{len(study.seeds)} run{'s' if len(study.seeds) > 1 else ''} of each model tell little of the "
                     "difference that seeds make.")
    if study.solves_width:
        notes += [f"{each.name} has no width to solve for and stays as its configuration says." for each in models
                  if each.trained and not each.solved]
    carried = [each.name for each in trained if each.run.training.carry_state]
    if carried and len(carried) < len(trained):
        notes.append(f"{', '.join(carried)} read the text in sequence, with the state carried from batch to batch; the "
                     "others read shuffled windows: the same text, in another order.")
    notes += [f"{key.replace('_', ' ')} may differ between models; the figures per model show it."
              for key in study.differ]
    return notes


def _missed_notes(matched: Sequence[Matched]) -> list[str]:
    return [f"{each.quantity}: meant to be equal, but the largest is {1 + each.spread:.2f} times the smallest, so a "
            "model may owe its place to them." for each in matched if each.missed]


def _counted_notes(models: Sequence[Contestant], tokens: int | None, corpus: CorpusFacts) -> list[str]:
    counted = [each.name for each in models if not each.trained]
    if not counted:
        return []
    names = ", ".join(counted)
    if tokens is not None and tokens < corpus.train_tokens:
        read = (f"{names}: counted on the first {tokens:,} tokens of each order of the data, as windows, which is what "
                "the budget pays for.")
    else:
        read = f"{names}: counted on the training text once; the budget pays for at least as much."
    return [read, f"{names}: not trained by gradients, so left out of what was matched; numbers kept are probabilities "
            "and back-off weights."]


def _trials(study: StudyConfig) -> str:
    settings = study.trials
    if settings.number < 2 and settings.values is None:
        return "No learning rate was tried: each model has its configuration's."
    rates = (f"{', '.join(f'{lr:g}' for lr in sorted(set(settings.values)))}" if settings.values is not None
             else f"the configuration's own in the middle, each {settings.ratio:g} times the one before")
    repeat = "" if settings.deviation is not None else ", and its best trial is repeated once with other seeds"
    return (f"Every model that gradients train has {settings.number} trials of the learning rate ({rates}), each of "
            f"{settings.share:.0%} of the budget, with seeds that no run has{repeat}.")


def _memory() -> str:
    if sys.platform.startswith("linux"):
        return ("Memory: the highest resident memory of the process of a run while it trains and looks at its "
                "checkpoints, Python and PyTorch included, from the first step on; on an accelerator, what PyTorch "
                "holds there.")
    return "Memory: the highest resident memory of the process of a run, reading the text included."
