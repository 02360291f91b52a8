"""The protocol of a study: what was held equal, how it was done, and cautions for its reader."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from weft.comparison.cautions import seen
from weft.comparison.contestants import Contestant
from weft.comparison.growth import Addition
from weft.comparison.measures import BLOCKS, FEWEST_DOCUMENTS
from weft.comparison.mixtures import mixtures
from weft.comparison.results import StudyModel
from weft.comparison.study import MANY, RUNS_OF_MANY, THE_DEFAULT, StudyConfig
from weft.comparison.study_result import CorpusFacts, Matched
from weft.comparison.study_settings import FEWEST_TRIALS, BudgetKind, BudgetSettings
from weft.comparison.texts import StudyTexts
from weft.core.part_config import expand
from weft.data import Repeated

PARAMETERS, BODY = "parameters", "parameters without embeddings"
NAMES = {"flops": "training FLOPs", "tokens": "training tokens", "seconds": "training seconds",
         "state_bytes": "state bytes"}
SECONDS_TOLERANCE = 0.1
"""Spread of seconds that still counts as equal: their number of steps follows from a pace that was measured before."""


def matched(study: StudyConfig, entries: Sequence[StudyModel], states: Sequence[int]) -> tuple[Matched, ...]:
    """Every quantity over the models that gradients train: counted ones have neither width nor FLOPs.

    What comes out equal counts as held equal, too.

    Args:
        states: bytes of the state of each trained model, at the context of the budget.
    """
    trained = [entry for entry in entries if entry.trainable]
    runs = [entry.finished for entry in trained]
    values: dict[str, list[float]] = {
        PARAMETERS: [entry.parameters for entry in trained],
        BODY: [entry.parameters - entry.embedding_parameters for entry in trained],
        NAMES["flops"]: [found[0].flops for found in runs if found],
        NAMES["tokens"]: [found[0].tokens for found in runs if found],
        NAMES["seconds"]: [value for entry in trained if (value := entry.median(lambda run: run.seconds)) is not None],
        NAMES["state_bytes"]: list(states)}
    wanted = _wanted(study)
    return tuple(Matched(name, name in wanted or spread(amounts) == 0, spread(amounts), _tolerance(study, name))
                 for name, amounts in values.items() if amounts)


def _tolerance(study: StudyConfig, name: str) -> float:
    """The spread of amounts of which one may lie as far below the budget as it allows, another as far above."""
    if name == NAMES["seconds"]:
        return SECONDS_TOLERANCE
    share = (study.budget or BudgetSettings(kind="tokens", amount=1)).tolerance
    return (1 + share) / (1 - share) - 1


def spread(amounts: Sequence[float]) -> float:
    """Largest over smallest, minus one; infinite where only the smallest is nothing."""
    low, high = min(amounts), max(amounts)
    if low == high:
        return 0.0
    return high / low - 1 if low > 0 else float("inf")


def kind_and_amount(study: StudyConfig, tokens: float) -> tuple[BudgetKind, float]:
    """The budget; a length in steps, with nothing else, is one in tokens."""
    if study.budget is not None:
        return study.budget.kind, study.budget.amount
    assert study.length is not None, "a study has a budget or a length"
    lengths: dict[str, tuple[BudgetKind, float]] = {
        "steps": ("tokens", tokens), "tokens": ("tokens", study.length.stated[1]),
        "flops": ("flops", study.length.stated[1]), "seconds": ("seconds", study.length.stated[1])}
    return lengths[study.length.stated[0]]


def statement(study: StudyConfig, models: Sequence[Contestant]) -> str:
    """The budget in a sentence that is true of every model."""
    unit, amount = study.training_budget
    if not any(each.trained for each in models):
        return f"Every model counts, from a budget of {_amount(unit, amount)}; the notes say what each has read."
    counted = any(not each.trained for each in models)
    every = "every model that gradients train" if counted else "every model"
    length = f"{every} is trained for {_amount(unit, amount)}"
    return " ".join([_lengths(study, length), *(["The notes say what counted models read."] if counted else []),
                     *_besides([each for each in models if each.trained])])


def _besides(trained: Sequence[Contestant]) -> list[str]:
    """The differences of models besides their kinds of layers, to which one may owe its place."""
    depths = {each.name: sum(1 for _ in expand(each.run.model.stack())) for each in trained}
    stacked = {name: depth for name, depth in depths.items() if depth}
    carried = [each.name for each in trained if each.run.training.carry_state]
    found = []
    if len(set(stacked.values())) > 1:
        found.append("the number of blocks (" + ", ".join(f"{name} {depth}" for name, depth in stacked.items()) + ")")
    if carried and len(carried) < len(trained):
        found.append(f"carried state and the order of the data (with a state, in sequence: {', '.join(carried)})")
    return [f"Models also differ in {' and in '.join(found)}."] if found else []


def _lengths(study: StudyConfig, length: str) -> str:
    if not study.solves_width or study.budget is None:
        return f"{length[0].upper()}{length[1:]}; widths are as the configurations say."
    budget = study.budget
    if budget.kind == "flops":
        return f"Widths are solved for {budget.amount:g} FLOPs of training, and {length}."
    if budget.kind == "parameters":
        what = f"{budget.amount:,.0f} parameters, {'embeddings included' if budget.embeddings else 'embeddings aside'}"
    else:
        at = "the context of training" if budget.at_context is None else f"{budget.at_context:,} tokens"
        what = f"{budget.amount:,.0f} bytes of state at {at}"
    return f"Widths are solved for {what} (within {budget.tolerance:.0%}), and {length}."


def _amount(unit: str, amount: float) -> str:
    return {"steps": f"{amount:,.0f} steps", "tokens": f"{amount:,.0f} tokens, in whole steps",
            "flops": f"{amount:g} FLOPs, in whole steps",
            "seconds": f"as many steps as {amount:g} seconds pay for, by its pace before the runs"}[unit]


def _wanted(study: StudyConfig) -> set[str]:
    wanted = {NAMES[unit] for unit in (study.training_budget[0],) if unit in NAMES}
    if study.budget is not None:
        kind = study.budget.kind
        wanted.add((PARAMETERS if study.budget.embeddings else BODY) if kind == "parameters" else NAMES[kind])
    return wanted


def protocol_of(study: StudyConfig, texts: StudyTexts, models: Sequence[Contestant]) -> tuple[str, ...]:
    """How it was done."""
    contexts = sorted({each.run.context for each in models})
    windows = " or ".join(f"{context:,}" for context in contexts)
    clusters = ("by document" if texts.test_documents >= FEWEST_DOCUMENTS
                else f"by block ({BLOCKS} of about equal bytes, as the text has {texts.test_documents} documents)")
    test = "Welch's t over the runs of both" if study.test == "welch" else "Student's t over paired runs"
    return (
        "Bits per byte: summed negative log2-likelihood of the test text over its UTF-8 bytes, every token scored "
        f"once, in windows of {windows} tokens that start from an empty state and do not see across documents; "
        "the end of a document, where the tokenizer marks it, counts as a token of 0 bytes.",
        texts.how,
        "The figure is of the last checkpoint; none is chosen by its figure.",
        f"Curves, gaps and evaluations at other lengths use {study.measure.curve_bytes:,} bytes of the test text at "
        "most, the same documents for every model.",
        *(() if not any(each.trained for each in models) else (_trials(study),)),
        _attempts(study),
        f"Intervals of differences: {test}, and a bootstrap of {study.measure.resamples:,} "
        f"resamples clustered {clusters}. A pair's p-value is for other runs on another text, by the sum of both "
        "variances, corrected after Holm over all pairs and for the looks at the study; a pair is not told apart where "
        f"it is above {1 - study.confidence:.2g}. Two models are as good as each other where two one-sided tests, "
        f"corrected alike, show a difference below {study.margin:g} bits per byte.",
        "FLOPs: forward and backward pass, three times the forward pass; matrix products, convolutions, Fourier "
        "transforms and scans, attention only where its mask allows. Seconds: of training steps alone, without "
        "evaluation and saving.",
        _memory())


def notes_of(study: StudyConfig, models: Sequence[Contestant], entries: Sequence[StudyModel],
             counted_tokens: int | None, corpus: CorpusFacts, matched: Sequence[Matched]) -> tuple[str, ...]:
    """Cautions for the reader, in sentences."""
    missed = [f"{each.quantity}: meant to be equal, but the largest is {1 + each.spread:.2f} times the smallest, so a "
              "model may owe its place to them." for each in matched if each.missed]
    notes = [*_effort_notes(study, models), *missed, *_counted_notes(models, counted_tokens, corpus)]
    for entry in entries:
        failed = [run for run in entry.runs if run.status in ("failed", "diverged")]
        if failed:
            notes.append(f"{entry.name}: {len(failed)} of {len(entry.runs)} runs did not finish ({failed[0].note})"
                         + ("; its mean is of the others." if entry.finished else "."))
        stopped = [run for run in entry.runs if run.status == "interrupted"]
        if stopped:
            notes.append(f"{entry.name}: {len(stopped)} of {len(entry.runs)} runs were interrupted "
                         f"({stopped[0].note}), which says nothing of the model; the same command tries them again.")
        pending = sum(run.status == "pending" for run in entry.runs)
        if pending:
            notes.append(f"{entry.name}: {pending} of {len(entry.runs)} runs are still to come.")
        edged = [run for run in entry.finished if run.edge]
        if edged:
            notes.append(f"{entry.name}: the learning rate of {len(edged)} of {len(entry.finished)} runs is the lowest "
                         "or highest that was tried for it, so a better one may lie beyond.")
        lost = [run for run in entry.runs if run.trials and all(trial.bits_per_byte is None for trial in run.trials)
                and run.status not in ("interrupted", "pending")]
        if lost:
            notes.append(f"{entry.name}: in {len(lost)} of {len(entry.runs)} attempts no trial finished, so that the "
                         "configuration's own learning rate was taken.")
    notes += [each.words() for each in mixtures(entries)]
    if Repeated(corpus.duplicated_documents, corpus.validation_documents, corpus.duplicated_share).told:
        notes.append(seen(corpus.duplicated_documents, corpus.validation_documents, corpus.duplicated_share))
    return tuple(notes)


def growth_notes(additions: Sequence[Addition]) -> tuple[str, ...]:
    """The additions to a study with their dates, and their effect on the tests."""
    if not additions:
        return ()
    said = tuple(f"Added on {each.when[:16].replace('T', ' at ')} UTC, when what was there before was known: "
                 f"{each.what}." for each in additions)
    return (*said, "Runs that the additions left as they were are those of before; looks before and after them share "
            "the study's level.")


def _effort_notes(study: StudyConfig, models: Sequence[Contestant]) -> list[str]:
    notes, trained = [], [each for each in models if each.trained]
    if study.trials.number < FEWEST_TRIALS and trained:
        tried = (f"Only {study.trials.number} learning rates were tried for each model" if study.tries_rates
                 else "No learning rate was tried for any model")
        notes.append(f"{tried}; a study that tunes tries at least {FEWEST_TRIALS}.")
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
    if not study.tries_rates:
        whose = "its configuration's" if settings.learning_rates is None else f"{settings.learning_rates[0]:g}"
        return f"No learning rate was tried: each model that gradients train has {whose}."
    stated = settings.learning_rates
    rates = (f"{', '.join(f'{lr:g}' for lr in sorted(set(stated)))}" if stated is not None
             else f"around the configuration's own, each {settings.ratio:g} times the one before")
    wider = ("" if not settings.widest else " Where the best of some model lies at the edge, all try one more on that "
             f"side, up to {settings.widest} on each.")
    long = ("as long as a run, so that the best is the run" if settings.share == 1
            else f"of {settings.share:.0%} of a run's steps")
    return (f"In each attempt every model that gradients train tries {settings.number} learning rates ({rates}), each "
            f"{long}, with the attempt's own seeds; the best on the tuning text is run.{wider} So what lies between "
            "runs contains the choice of the rate.")


def _attempts(study: StudyConfig) -> str:
    kinds = {name: {study.seeds_of(name, index) for index in range(len(study.seeds))} for name in study.models}
    alike = all(pairs == next(iter(kinds.values())) for pairs in kinds.values())
    whose = "run i of each has the same pair" if alike else "models have pairs of their own"
    varied = {"the initial weights and dropout": {each.seed for each in study.seeds},
              "the order of the data": {each.order_seed for each in study.seeds}}
    fixed = [what for what, numbers in varied.items() if len(numbers) == 1 < len(study.seeds)]
    stays = f" (fixed for all runs: {fixed[0]}, so no interval contains what another one would change)" if fixed else ""
    runs = "1 run" if len(study.seeds) == 1 else f"{len(study.seeds)} runs"
    default = f" ({THE_DEFAULT})" if len(study.models) >= MANY and len(study.seeds) == RUNS_OF_MANY else ""
    return (f"{runs} of every model{default}; {whose} of seeds, one for the initial weights and dropout, one for the "
            f"order of the data{stays}. Models take turns, so that a study that stops early is fair.")


def _memory() -> str:
    if sys.platform.startswith("linux"):
        return ("Memory: the highest resident memory of the process of a run while it trains and looks at its "
                "checkpoints, Python and PyTorch included, from the first step on; on an accelerator, what PyTorch "
                "holds there.")
    return "Memory: the highest resident memory of the process of a run, reading the text included."
