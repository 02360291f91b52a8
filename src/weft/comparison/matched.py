"""Which quantities a study held equal, and how far apart each lies."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.contestants import Contestant
from weft.comparison.results import BudgetKind, Entry, Matched
from weft.comparison.study import BudgetSettings, StudyConfig

PARAMETERS, BODY = "parameters", "parameters without embeddings"
NAMES = {"flops": "training FLOPs", "tokens": "training tokens", "seconds": "training seconds",
         "state_bytes": "state bytes"}
SECONDS_TOLERANCE = 0.1
"""Spread of seconds that still counts as equal: their number of steps follows from a pace that was measured before."""


def matched(study: StudyConfig, entries: Sequence[Entry], states: Sequence[int]) -> tuple[Matched, ...]:
    """Every quantity over the models that gradients train: counted ones have neither width nor FLOPs.

    What comes out equal counts as held equal, too.

    Args:
        study: says what was wanted.
        entries: the models.
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
        return f"Every model counts, from a budget of {_amount(unit, amount)}; what each has read stands in the notes."
    counted = any(not each.trained for each in models)
    every = "every model that gradients train" if counted else "every model"
    length = f"{every} is trained for {_amount(unit, amount)}"
    return _lengths(study, length) + (" What counted models read stands in the notes." if counted else "")


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
    return {"steps": f"{amount:,.0f} steps", "tokens": f"the whole steps in {amount:,.0f} tokens",
            "flops": f"the whole steps in {amount:g} FLOPs",
            "seconds": f"as many steps as {amount:g} seconds pay for, by its pace before the runs"}[unit]


def _wanted(study: StudyConfig) -> set[str]:
    wanted = {NAMES[unit] for unit in (study.training_budget[0],) if unit in NAMES}
    if study.budget is not None:
        kind = study.budget.kind
        wanted.add((PARAMETERS if study.budget.embeddings else BODY) if kind == "parameters" else NAMES[kind])
    return wanted
