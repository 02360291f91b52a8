"""A study's result as tables, for a terminal of 80 columns or more, or a pipe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.cli.text import console, section, short, table

if TYPE_CHECKING:
    from rich.table import Table

    from weft.comparison.power import DetectableRange
    from weft.comparison.results import StudyModel
    from weft.comparison.statistics import Interval
    from weft.comparison.study_result import Difference, StudyResult

PIPE_WIDTH = 100
"""Columns of output that does not go to a terminal."""


def print_study(result: StudyResult) -> None:
    """Print the result of a study, models from best to worst."""
    from weft.comparison.findings import TEST_NAMES

    out = console()
    if not out.is_terminal:
        out.width = max(out.width, PIPE_WIDTH)
    out.print(f"{result.name}: {result.budget.statement}")
    runs = "1 run" if result.seeds == 1 else f"{result.seeds} runs"
    out.print(f"{result.corpus.name}, {result.corpus.validation_bytes:,} bytes of test text; {runs} of "
              f"each model; intervals at {100 * result.level:.5g}%")
    out.print()
    entries = sorted(result.entries, key=lambda entry: (entry.bits_per_byte is None, entry.bits_per_byte or 0.0))
    section(out, f"Detectable difference, with {TEST_NAMES[result.test]}", _reach(result))
    if result.detectable_basis:
        out.print(result.detectable_basis)
        out.print()
    section(out, "Bits per byte (two models share a letter exactly where they are not told apart)",
            _quality(result, entries))
    counted = "" if all(entry.trainable for entry in entries) else " (what is counted is not learned)"
    section(out, f"Size, and state while decoding{counted}", _size(entries))
    section(out, "Cost of training (medians over runs)" if result.seeds > 1 else "Cost of training", _cost(entries))
    pairs = [_better_first(pair) for pair in result.differences]
    section(out, "Told apart: how much better the first is, in bits per byte",
            _differences([pair for pair in pairs if not pair.tied], "better", "than", None))
    section(out, "Not told apart: second minus first, in bits per byte",
            _differences([pair for pair in pairs if pair.tied], "first", "second", result.margin))
    section(out, "Order of the trained models during training, from best to worst in the mean", _orders(result))
    section(out, "Order of every pair during training", _courses(pairs))
    section(out, "What was matched, over the models that gradients train", _matched(result))
    section(out, "How these were trained", _settings(result))
    section(out, "Runs that did not finish", _failures(entries))
    out.print(table("", "", header=False, rows=[("-", line) for line in _notes(result, entries)]))


def _reach(result: StudyResult) -> Table:
    from weft.comparison.power import reaches

    rows = table("runs of each model", ">|t| must exceed", ">before the runs", ">by runs and documents")
    for each in reaches(result):
        rows.add_row(f"{each.runs} (this study)" if each.runs == result.seeds else str(each.runs),
                     "" if each.critical is None else _limits(each.critical),
                     _expected(each), "" if each.found is None else f"{each.found:.4f}")
    return rows


def _expected(each: DetectableRange) -> str:
    """The difference that could be expected before the runs: in bits per byte, or in standard deviations."""
    if each.difference is not None:
        return f"{each.difference:.4f}"
    return "not known" if each.spreads is None else f"{each.spreads:.2g} sd"


def _limits(critical: tuple[float, float]) -> str:
    """The range of critical values as text; one number where both ends are equal."""
    least, most = (f"{each:.2f}" for each in critical)
    return least if least == most else f"{least} to {most}"


def _quality(result: StudyResult, entries: list[StudyModel]) -> Table:
    from weft.comparison.verdict import letters, mean_interval

    between = "" if len(result.tied_sets) <= 26 else " "
    rows = table("model", ">bits/byte", ">± seeds", "letters", ">runs", ">lr", "what it is")
    for entry in entries:
        values = [run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None]
        interval = mean_interval(values, result.level) if values else None
        rows.add_row(entry.name, "failed" if interval is None else f"{interval.mean:.4f}",
                     "" if interval is None else "one run" if interval.high is None else
                     f"{interval.high - interval.mean:.4f}", between.join(letters(entry.name, result.tied_sets)),
                     f"{len(values)}/{len(entry.runs)}", _rates(entry), entry.kind)
    return rows


def _rates(entry: StudyModel) -> str:
    """All learning rates that the runs chose; ``!`` marks that the best lay at the edge of those tried."""
    if not entry.rates:
        return "" if entry.trainable else "counted"
    return ", ".join(f"{rate:.2g}" for rate in entry.rates) + ("!" if entry.edge else "")


def _size(entries: list[StudyModel]) -> Table:
    return table("model", ">parameters", ">embeddings", ">state", rows=[
        (entry.name, _numbers(entry), short(entry.embedding_parameters) if entry.trainable else "",
         "" if entry.state is None else f"{short(entry.state.state_bytes, 'B')} after {entry.state.context:,} tokens")
        for entry in entries])


def _numbers(entry: StudyModel) -> str:
    """The number of parameters, or of counted probabilities; the word alone where no run has counted."""
    if entry.trainable:
        return short(entry.parameters)
    return f"{short(entry.parameters)} counted" if entry.parameters else "counted"


def _cost(entries: list[StudyModel]) -> Table:
    rows = table("model", ">FLOPs", ">tokens", ">seconds", ">tokens/s", ">memory")
    for entry in entries:
        flops = entry.median(lambda run: run.flops) if entry.trainable else None
        seconds = entry.median(lambda run: run.seconds)
        rows.add_row(
            entry.name, _short(flops), _short(entry.median(lambda run: float(run.tokens))),
            "" if seconds is None else f"{seconds:,.1f}", _short(entry.median(lambda run: run.tokens_per_second)),
            _short(entry.median(lambda run: float(run.peak_memory_bytes)), "B"))
    return rows


def _short(value: float | None, unit: str = "") -> str:
    return "" if value is None else short(value, unit)


def _better_first(pair: Difference) -> Difference:
    """The pair with the better model (lower mean over seeds) first; the difference is then the second model's bits per
    byte minus the first's, and so not negative."""
    from weft.comparison.statistics import negated

    if pair.over_seeds.mean > 0:
        return replace(pair, first=pair.second, second=pair.first)
    return replace(pair, over_seeds=negated(pair.over_seeds), over_both=negated(pair.over_both))


def _differences(pairs: list[Difference], first: str, second: str, margin: float | None) -> Table:
    """Rows of pairs; with a margin, whether tests of equivalence show that the two are as good as each other."""
    alike = [] if margin is None else [f"as good, within {margin:g}"]
    rows = table(first, second, ">by", ">over seeds and documents", ">p (Holm)", *alike)
    for pair in pairs:
        rows.add_row(pair.first, pair.second, f"{pair.over_seeds.mean:.4f}", _bounds(pair.over_both),
                     _p_value(pair), *(["yes" if pair.equivalent else "not shown"] if alike else []))
    return rows


def _orders(result: StudyResult) -> Table:
    from weft.comparison.findings import orders

    return table("share of the budget", "best to worst", rows=[
        (f"{first:.0%}" if first == last else f"{first:.0%} to {last:.0%}", ", ".join(names))
        for first, last, names in orders(result)])


def _courses(pairs: list[Difference]) -> Table:
    from weft.comparison.findings import order_of, words

    return table("better at the end", "than", "their order", rows=[
        (pair.first, pair.second, words(order_of(pair.gaps))) for pair in pairs if pair.gaps])


def _matched(result: StudyResult) -> Table:
    rows = table("quantity", "held equal", ">largest over smallest")
    for each in result.budget.matched:
        held = "yes" if each.held else f"aimed at, missed by {each.spread:.0%}" if each.missed else "no"
        value = 1 + each.spread
        ratio = f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
        rows.add_row(each.quantity, held, ratio)
    return rows


def _settings(result: StudyResult) -> Table:
    """A row for a setting that all models share, and one for each model where they differ."""
    rows = table("setting", "equal", "model", "value")
    for each in result.budget.settings:
        if each.equal:
            rows.add_row(each.name, "yes", "all", max((value for _, value in each.values), key=len))
            continue
        for place, (name, value) in enumerate(each.values):
            rows.add_row("" if place else each.name, "" if place else "no", name, value)
    return rows


def _failures(entries: list[StudyModel]) -> Table:
    return table("model", ">run", "how", "why", rows=[
        (entry.name, str(run.index + 1), run.status, run.note) for entry in entries for run in entry.runs
        if run.status not in ("finished", "pending")])


def _notes(result: StudyResult, entries: list[StudyModel]) -> list[str]:
    """The notes of the study, and those that follow from its runs."""
    from weft.comparison.findings import doubts, pairing_effect, rates_differ, varied
    from weft.comparison.power import looked

    edges = "! behind a learning rate: the best was the lowest or highest of those that a run tried."
    found = [looked(result), edges if any(entry.edge for entry in entries) else None, varied(result),
             rates_differ(result), pairing_effect(result), doubts(result)]
    return [*result.notes, *(each for each in found if each)]


def _p_value(pair: Difference) -> str:
    if pair.p_holm is None:
        return "not known"
    return "< 0.0001" if pair.p_holm < 0.0001 else f"{pair.p_holm:.4f}"


def _bounds(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "one run"
    return f"{interval.low:.4f} to {interval.high:.4f}"
