"""Conclusions from a result: the sources of its intervals, and the order of the models during training."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from weft.comparison.mixtures import mixtures
from weft.comparison.results import StudyModel, at_share
from weft.comparison.statistics import Interval, correlation, seed_test
from weft.comparison.study_result import Difference, GapPoint, StudyResult
from weft.comparison.verdict import bits_of, crosses, shared_runs, side_of_zero

Source: TypeAlias = Literal["runs", "documents"]
TEST_NAMES = {"welch": "Welch's t test of independent runs", "paired": "the t test of runs paired by their number"}


def larger_doubt(pair: Difference) -> Source | None:
    """Whether runs or documents move the difference of the means more, by their standard errors; None where one is not
    known or they are equal."""
    if pair.seed_error is None or not math.isfinite(pair.document_error) or pair.seed_error == pair.document_error:
        return None
    return "runs" if pair.seed_error > pair.document_error else "documents"


def doubts(result: StudyResult) -> str | None:
    """Which source of doubt dominates, over all pairs; None where no pair knows both."""
    known = [pair for pair in result.differences if larger_doubt(pair) is not None]
    if not known:
        return None
    runs = [pair.seed_error for pair in known if pair.seed_error is not None]
    documents = [pair.document_error for pair in known]
    more = sum(larger_doubt(pair) == "runs" for pair in known)
    which = ("Runs weigh more in every pair" if more == len(known) else
             "Documents weigh more in every pair" if more == 0 else
             f"Runs weigh more in {more} of {len(known)} pairs, documents in {len(known) - more}")
    remedy = ("more runs would tell more than a longer test text" if more == len(known) else
              "a longer test text would tell more than more runs" if more == 0 else
              "which of more runs and a longer test text would tell more depends on the pair")
    return (f"The standard error of a difference of two means is {_span(runs)} bits per byte from run to run and "
            f"{_span(documents)} from document to document of the test text. {which}: {remedy}.")


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


class Pairing(NamedTuple):
    """How runs of two models with the same number, which have the same seeds unless the study says otherwise, go
    together.

    Attributes:
        correlation: of their bits per byte; None below three runs, and where one model's do not vary.
        width: of the paired interval, as a multiple of Welch's over the same runs; None where that has none.
    """

    correlation: float | None
    width: float | None


def pairing(first: StudyModel, second: StudyModel, confidence: float) -> Pairing | None:
    """The pairing of two models' runs; None with fewer than two runs of the same number that both finished."""
    shared = shared_runs(first, second)
    if len(shared) < 2:
        return None
    ours, theirs = bits_of([a for a, _ in shared]), bits_of([b for _, b in shared])
    paired, welch = (_width(seed_test(test, ours, theirs, confidence).interval) for test in ("paired", "welch"))
    return Pairing(correlation(ours, theirs), paired / welch if welch > 0 else None)


def _width(interval: Interval) -> float:
    return 0.0 if interval.low is None or interval.high is None else interval.high - interval.low


def pairing_effect(result: StudyResult) -> str | None:
    """The gain or loss by pairing the runs, or that pairing would have brought; None where no two models share two
    runs."""
    found = [each for a, b in itertools.combinations(result.entries, 2)
             if (each := pairing(a, b, result.level)) is not None]
    widths = [each.width for each in found if each.width is not None and math.isfinite(each.width)]
    if not widths:
        return None
    middle = statistics.median(widths)
    span = _span(widths)
    times = f"{span} times as wide" + (f" (median {middle:.2g})" if " to " in span else "")
    effect = (f"Pairing made the intervals over seeds {times} as without: it " if result.test == "paired" else
              f"Paired, the intervals over seeds would have been {times}: it would have ")
    if f"{middle:.2g}" == "1":  # such as where one of the two models is counted, and all its runs are the same
        verdict = "neither gained nor lost precision in the middle of the pairs"
    else:
        verdict = "lost more in degrees of freedom than it took from the spread" if middle > 1 else "gained precision"
    return (f"The test of runs is {TEST_NAMES[result.test]}, as the study says before its runs. {_correlations(found)}"
            f"{effect}{verdict}.")


def _correlations(found: Sequence[Pairing]) -> str:
    known = [each.correlation for each in found if each.correlation is not None]
    if not known:
        return ""
    # Plus zero: what is rounded to zero has no sign.
    low, middle, high = (f"{round(each, 2) + 0.0:.2f}".replace("-", "\u2212")
                         for each in (min(known), statistics.median(known), max(known)))
    span = low if low == high else f"{low} to {high} (median {middle})"
    return f"Runs of the same number correlate by {span}. "


def varied(result: StudyResult) -> str | None:
    """The settings that differed from run to run, which is what the intervals over seeds contain; None with one run of
    each."""
    trained = [entry for entry in result.entries if entry.trainable and len(entry.runs) > 1]
    if result.seeds < 2 or not result.entries:
        return None
    sentences = []
    if trained:
        runs = trained[0].runs
        causes = [what for what, values in (
            ("the initial weights and dropout", {run.seed for run in runs}),
            ("the order of the data", {run.order_seed for run in runs})) if len(values) > 1]
        tuned = [entry for entry in trained if any(run.trials for run in entry.runs)]
        if tuned:
            causes.append("the choice of the learning rate, which every run makes by trials of its own")
        sentences.append(f"From run to run of a model vary {_listed(causes)}, and the intervals over seeds contain "
                         "just that." if causes else "Nothing varies from run to run of a model but rounding.")
        if len(tuned) < len(trained):
            names = _listed([entry.name for entry in trained if entry not in tuned])
            sentences.append(f"No learning rate was tried for {names}, so its choice is in no interval.")
    sentences += [f"{entry.name} is counted, and " + (
        "all its runs are the same." if len({run.bits_per_byte for run in entry.finished}) == 1 else
        "what varies is which part of the text it reads.")
        for entry in result.entries if not entry.trainable and len(entry.finished) > 1]
    return " ".join(sentences) or None


def rates_differ(result: StudyResult) -> str | None:
    """Models whose runs chose different learning rates, and those whose runs are a mixture by it; None where none
    did."""
    choices = {entry.name: [f"{rate:.2g} in {sum(run.lr == rate for run in entry.finished)}" for rate in entry.rates]
               for entry in result.entries if len(entry.rates) > 1}
    found = [f"{name} ({_listed(chosen)})" for name, chosen in choices.items()]
    mixed = _listed([each.name for each in mixtures(result.entries)])
    warned = (f" The runs of {mixed} are a mixture by it, far beyond the spread of runs of one rate, so that the "
              "interval of its mean and what is tested with it are not to be trusted.") if mixed else ""
    return f"Runs chose different learning rates in {_listed(found)}.{warned}" if found else None


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


OrderKind: TypeAlias = Literal["holds", "changes", "open", "unknown"]
"""Of two models' order from share to share of the budget:

holds      the mean difference keeps its sign
changes    some interval lies wholly on the other side of zero from the last one's
open       the mean changes its sign, but not from beyond one interval to beyond another
unknown    fewer than two shares at which both are known
"""


class Order(NamedTuple):
    """How the order of two models went.

    Attributes:
        between: the two neighbouring shares at which the mean difference last changed its sign; None if it never did.
        since: the first share at which it is known.
        ends_beyond: the last interval leaves zero out.
    """

    kind: OrderKind
    between: tuple[float, float] | None
    since: float | None
    ends_beyond: bool


def order_of(gaps: Sequence[GapPoint]) -> Order:
    """The order of a pair from its gaps, by rising share. A difference of exactly zero has the sign before it."""
    if len(gaps) < 2:
        return Order("unknown", None, gaps[0].share if gaps else None, False)
    between, sign = None, 0
    for before, gap in zip([None, *gaps], gaps, strict=False):
        now = (gap.difference.mean > 0) - (gap.difference.mean < 0)
        if before is not None and sign and now == -sign:
            between = (before.share, gap.share)
        sign = now or sign
    kind: OrderKind = "holds" if between is None else "open"
    if crosses([gap.difference for gap in gaps]):
        kind = "changes"
    return Order(kind, between, gaps[0].share, side_of_zero(gaps[-1].difference) != 0)


class OrderStretch(NamedTuple):
    """Neighbouring shares of the budget, ``first`` to ``last``, at which the order is the same, from best to worst."""

    first: float
    last: float
    names: tuple[str, ...]


def orders(result: StudyResult) -> list[OrderStretch]:
    """The order of the trained models in the mean, at the shares of the budget that every finished run of them has;
    none with fewer than two models."""
    trained = [entry for entry in result.entries if entry.trainable and entry.finished]
    shares = sorted({gap.share for pair in result.differences for gap in pair.gaps})
    found: list[OrderStretch] = []
    for share in shares if len(trained) > 1 else ():
        values = {entry.name: [at_share(run.curve, share) for run in entry.finished] for entry in trained}
        means = {name: sum(known) / len(known) for name, each in values.items()
                 if (known := [bits for bits in each if bits is not None]) and len(known) == len(each)}
        if len(means) == len(trained):
            names = tuple(sorted(means, key=lambda name: (means[name], name)))
            if found and found[-1].names == names:
                found[-1] = found[-1]._replace(last=share)
            else:
                found.append(OrderStretch(share, share, names))
    return found


def words(order: Order) -> str:
    """The order of a pair in a few words."""
    if order.kind == "unknown":
        return "not known"
    if order.between is None:
        return f"holds from {order.since:.0%} on"
    where = f"between {order.between[0]:.0%} and {order.between[1]:.0%}"
    if order.kind == "changes":
        return f"changes {where}"
    return f"means cross {where}, undecided {'before' if order.ends_beyond else 'at the end'}"
