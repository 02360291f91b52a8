"""The main table: what each model is worth, what it took, and what of that was held equal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from weft.comparison.report.view import View, half_width
from weft.comparison.results import RunResult, StudyModel
from weft.comparison.statistics import Interval, t_test
from weft.comparison.study_result import Matched
from weft.comparison.verdict import letters
from weft.drawing.markup import Child, Markup, join, tag
from weft.drawing.numbers import (
    MISSING,
    decimals_of,
    duration,
    fixed,
    integer,
    known,
    learning_rate,
    octets,
    ratio,
    si,
    significant,
)
from weft.drawing.numbers import confidence as level_of
from weft.drawing.tables import Column, table

FIGURE_SPACE = "\u2007"


@final
@dataclass(frozen=True)
class Quantity:
    """A column of what a model took.

    Attributes:
        names: under which the study says whether it was matched.
    """

    head: str
    names: tuple[str, ...]
    show: Callable[[StudyModel], str]


def _per_run(read: Callable[[RunResult], float], write: Callable[[float], str]) -> Callable[[StudyModel], str]:
    """The median over the finished runs."""
    def show(entry: StudyModel) -> str:
        value = entry.median(read)
        return MISSING if value is None else write(value)

    return show


def _parameters(entry: StudyModel) -> str:
    """As many as gradients train, or as a model keeps from counting; the word alone where no run counted any."""
    if entry.trainable:
        return si(entry.parameters)
    word = tag("span", {"class": "spread"}, "counted")
    return join(si(entry.parameters), " ", word) if entry.parameters else word


def _rates(entry: StudyModel) -> Markup:
    """All that the runs chose, and whether a better one may lie outside those tried."""
    if not entry.rates:
        return Markup("")
    shown = f"learning rate {', '.join(map(learning_rate, entry.rates))}"
    return tag("span", {"class": "kind"}, shown, *([", ", tag("span", {"class": "flag"}, "at the edge")]
                                                   if entry.edge else []))


def perplexity(entry: StudyModel) -> float | None:
    """Per token, of the mean loss over the finished runs."""
    losses = [run.loss for run in entry.finished if run.loss is not None and known(run.loss)]
    return math.exp(min(sum(losses) / len(losses), 700.0)) if losses else None


QUANTITIES = (
    Quantity("Parameters", ("parameters",), _parameters),
    Quantity("Body + embeddings", ("parameters without embeddings",), lambda entry: (
        f"{si(entry.parameters - entry.embedding_parameters)} + {si(entry.embedding_parameters)}"
        if entry.trainable else MISSING)),
    Quantity("FLOPs", ("flops", "training flops"),
             lambda entry: _per_run(lambda run: run.flops, si)(entry) if entry.trainable else MISSING),
    Quantity("Tokens", ("tokens", "training tokens"), _per_run(lambda run: float(run.tokens), si)),
    Quantity("Time", ("seconds", "training seconds", "time"), _per_run(lambda run: run.seconds, duration)),
    Quantity("Tokens/s", ("tokens per second", "tokens/s"), _per_run(lambda run: run.tokens_per_second, si)),
    Quantity("Peak memory", ("memory", "peak memory", "peak memory bytes", "memory bytes"),
             _per_run(lambda run: float(run.peak_memory_bytes), octets)),
    Quantity("State", ("state bytes", "state", "decode state bytes"),
             lambda entry: MISSING if entry.state is None else octets(entry.state.state_bytes)),
)


def ranking(view: View) -> Markup:
    """Best first."""
    level = level_of(view.result.level)
    interval = f"\u00b1 {level} over seeds" if any(len(entry.finished) > 1 for entry in view.ranked) else "one run each"
    columns = [Column("Model", number=False), Column("Bits per byte", interval),
               Column("Perplexity", "per token"),
               Column("Letters", number=False, wraps=False),
               *(Column(each.head, match_note(each, view.result.budget.matched)) for each in QUANTITIES),
               Column("Runs", "finished", number=False)]
    most = max((_decimals(entry, view) for entry in view.ranked if known(entry.bits_per_byte)), default=3)
    rows: list[list[Child]] = [[
        join(view.key(entry), " ", _rates(entry)),
        worth(entry, view, most), MISSING if (each := perplexity(entry)) is None else significant(each),
        " ".join(letters(entry.name, view.result.tied_sets)) or MISSING,
        *(quantity.show(entry) for quantity in QUANTITIES), run_count(entry)] for entry in view.ranked]
    given = [{"data-model": str(view.styles[entry.name].index), "class": "top" if (entry.name in view.top) else None}
             for entry in view.ranked]
    return join(table(_caption(view), columns, rows, name="ranking", attributes={"class": "ranking sortable"},
                      row_attributes=given), _other_matches(view))


def _caption(view: View) -> str:
    counted = "".join(f" {words}" for words in counted_words(view))
    edges = (" At the edge: the best learning rate was the lowest or highest tried; a better one may lie beyond."
             if any(entry.edge for entry in view.ranked) else "")
    contexts = sorted({entry.state.context for entry in view.ranked if entry.state is not None})
    state = f" State is one row's after {' or '.join(map(integer, contexts))} tokens." if contexts else ""
    among = "" if all(entry.trainable for entry in view.ranked) else ", over the models that gradients train"
    heads = (f" Under a heading: what was held equal and what was not, and by how much the largest exceeds the "
             f"smallest{among}." if view.result.budget.matched else "")
    taken = " What was taken is the median of the runs." if view.result.seeds > 1 else ""
    return (f"On the test text. Budget: {view.result.budget.statement} Embeddings include the readout.{counted}{state}"
            f"{edges}{taken}{heads}")


def counted_words(view: View) -> list[str]:
    """The tokens that counted models took, of which a budget of training says nothing; none where none is counted."""
    found = []
    for entry in view.ranked:
        if not entry.trainable:
            tokens, seconds = entry.median(lambda run: float(run.tokens)), entry.median(lambda run: run.seconds)
            took = "" if seconds is None else f" in {duration(seconds)}"
            read = "." if tokens is None else f": it read {integer(round(tokens))} tokens{took}."
            found.append(f"{entry.name} is counted, not trained{read}")
    return [*found, "What is counted is kept from the text, not learned by gradients."] if found else []


def interval_of(entry: StudyModel, confidence: float) -> Interval | None:
    """Mean of the finished runs, and Student's interval where there are two or more; None without a finished run."""
    values = [run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None and known(run.bits_per_byte)]
    return t_test(values, confidence).interval if values else None


def _decimals(entry: StudyModel, view: View) -> int:
    interval = interval_of(entry, view.result.level)
    return decimals_of(half_width(interval) if interval is not None else None)


def worth(entry: StudyModel, view: View, most: int) -> Child:
    """The mean with the digits that its interval allows; decimal points stand below each other."""
    interval = interval_of(entry, view.result.level)
    if interval is None:
        return MISSING
    decimals = _decimals(entry, view)
    half = half_width(interval)
    spread = "" if half is None else " no spread" if half == 0 else f" \u00b1{fixed(half, decimals)}"
    pad = FIGURE_SPACE * (most - decimals)
    return join(tag("span", {"class": "figure"}, fixed(interval.mean, decimals)), pad,
                tag("span", {"class": "spread"}, spread) if spread else "")


def lost_counts(runs: Sequence[RunResult]) -> list[tuple[str, int]]:
    """The ends of the runs that did not finish, with how many there are of each."""
    found = [run.status for run in runs if run.status != "finished"]
    return [(status, found.count(status)) for status in sorted(set(found))]


def run_count(entry: StudyModel) -> Child:
    """Finished of all, and what became of the others."""
    lost = ", ".join(f"{count} {status}" for status, count in lost_counts(entry.runs))
    whole = f"{len(entry.finished)} of {len(entry.runs)}"
    return join(whole, " ", tag("span", {"class": "flag"}, lost)) if lost else whole


def plain_name(name: str) -> str:
    """The name of a quantity, to be compared: small letters, spaces for underscores."""
    return re.sub(r"[_\s]+", " ", name).strip().lower()


def shown_name(name: str) -> str:
    """In a sentence."""
    return plain_name(name).replace("flops", "FLOPs")


def match_note(quantity: Quantity, matched: Sequence[Matched]) -> Child:
    """Under the head of a column."""
    found = next((each for each in matched if plain_name(each.quantity) in quantity.names), None)
    if found is None:
        return ""
    kind = "matched" if found.held else "missed" if found.missed else "unmatched"
    words = {"matched": "=\u00a0matched", "missed": "\u2260\u00a0aimed at,", "unmatched": "\u2260\u00a0unmatched"}[kind]
    return join(tag("span", {"class": kind}, words), tag("br"), " ", tag("span", {"class": "unbroken"}, extent(found)))


def extent(found: Matched) -> str:
    """How far the largest exceeds the smallest."""
    if not known(found.spread):
        return "missed by an unknown amount" if found.missed else "by an unknown amount"
    if found.spread == 0:
        return "exactly" if found.matched else "equal here"
    return f"{'within' if found.held else 'missed by' if found.missed else 'up to'} {ratio(found.spread)}"


def _other_matches(view: View) -> Markup:
    taken = {name for quantity in QUANTITIES for name in quantity.names}
    others = [each for each in view.result.budget.matched if plain_name(each.quantity) not in taken]
    if not others:
        return Markup("")
    held = ["matched" if each.held else "aimed at" if each.missed else "not matched" for each in others]
    words = "; ".join(f"{shown_name(each.quantity)} {how}, {extent(each)}"
                      for each, how in zip(others, held, strict=True))
    return tag("p", {"class": "small"}, f"Outside the table: {words}.")
