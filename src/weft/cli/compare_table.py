"""A study's result as tables, for a terminal of 80 columns or more, or a pipe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.cli.text import console, section, short, table

if TYPE_CHECKING:
    from rich.table import Table

    from weft.comparison.results import Difference, Entry, Interval, StudyResult

PIPE_WIDTH = 100
"""Columns where there is no terminal."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def print_study(result: StudyResult) -> None:
    """Everything that the study found, from best to worst."""
    out = console()
    if not out.is_terminal:
        out.width = max(out.width, PIPE_WIDTH)
    out.print(f"{result.name}: {result.budget.statement}")
    out.print(f"{result.corpus.name}, {result.corpus.validation_bytes:,} bytes of test text; {result.seeds} runs of "
              f"each model; intervals at {result.confidence:.0%}")
    out.print()
    entries = _ordered(result)
    section(out, "Bits per byte (models that share a letter are not told apart)", _quality(result, entries))
    counted = "" if all(entry.trainable for entry in entries) else " (what is counted is not learned)"
    section(out, f"Size, and state while decoding{counted}", _size(entries))
    section(out, "Cost of training (medians over runs)", _cost(entries))
    pairs = [_better_first(pair) for pair in result.differences]
    section(out, "Told apart: how much better the first is, in bits per byte",
            _differences([pair for pair in pairs if not pair.tied], "better", "than"))
    section(out, "Not told apart: second minus first, in bits per byte",
            _differences([pair for pair in pairs if pair.tied], "first", "second"))
    section(out, "What was matched, over the models that gradients train", _matched(result))
    section(out, "Runs that did not finish", _failures(entries))
    notes = table("", "", header=False)
    for line in (*result.notes, *_crossings(pairs), _detectable(result)):
        notes.add_row("-", line)
    out.print(notes)


def _ordered(result: StudyResult) -> list[Entry]:
    """From the fewest bits per byte; those without a figure last."""
    return sorted(result.entries, key=lambda entry: (entry.bits_per_byte is None, entry.bits_per_byte or 0.0))


def _letters(result: StudyResult, name: str) -> str:
    return "".join(LETTERS[place % len(LETTERS)] for place, each in enumerate(result.tied_sets) if name in each)


def _quality(result: StudyResult, entries: list[Entry]) -> Table:
    from weft.comparison.verdict import mean_interval

    rows = table("model", ">bits/byte", ">± seeds", "tied", ">runs", ">lr", "what it is")
    for entry in entries:
        values = [run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None]
        interval = mean_interval(values, result.confidence) if values else None
        lr = "counted" if not entry.trainable else f"{', '.join(f'{lr:.2g}' for lr in entry.rates)}{'!' * entry.edge}"
        rows.add_row(entry.name, "failed" if interval is None else f"{interval.mean:.4f}",
                     "" if interval is None else _margin(interval), _letters(result, entry.name),
                     f"{len(values)}/{len(entry.runs)}", lr, entry.kind)
    return rows


def _size(entries: list[Entry]) -> Table:
    rows = table("model", ">parameters", ">embeddings", ">state")
    for entry in entries:
        rows.add_row(entry.name, _numbers(entry), short(entry.embedding_parameters) if entry.trainable else "",
                     "" if entry.state is None else
                     f"{short(entry.state.state_bytes, 'B')} after {entry.state.context:,} tokens")
    return rows


def _numbers(entry: Entry) -> str:
    """How many a model has, or keeps from counting; the word alone where no run counted any."""
    if entry.trainable:
        return short(entry.parameters)
    return f"{short(entry.parameters)} counted" if entry.parameters else "counted"


def _cost(entries: list[Entry]) -> Table:
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
    """The pair with the model first that predicts better, by the mean over seeds; and the second's bits minus the
    first's, which is then above zero."""
    if pair.over_seeds.mean > 0:
        return replace(pair, first=pair.second, second=pair.first)
    return replace(pair, over_seeds=_negative(pair.over_seeds), over_documents=_negative(pair.over_documents))


def _negative(interval: Interval) -> Interval:
    low, high = (None if bound is None else -bound for bound in (interval.high, interval.low))
    return replace(interval, mean=-interval.mean, low=low, high=high)


def _differences(pairs: list[Difference], first: str, second: str) -> Table:
    rows = table(first, second, ">by", ">over seeds", ">over documents", ">p (Holm)")
    for pair in pairs:
        rows.add_row(pair.first, pair.second, f"{pair.over_seeds.mean:.4f}", _bounds(pair.over_seeds),
                     _bounds(pair.over_documents), _p_value(pair))
    return rows


def _crossings(pairs: list[Difference]) -> list[str]:
    return [f"{pair.first} and {pair.second}: which of them is better changes during training." for pair in pairs
            if pair.crosses]


def _matched(result: StudyResult) -> Table:
    rows = table("quantity", "held equal", ">largest over smallest")
    for each in result.budget.matched:
        held = "yes" if each.held else f"aimed at, missed by {each.spread:.0%}" if each.missed else "no"
        rows.add_row(each.quantity, held, _ratio(1 + each.spread))
    return rows


def _ratio(value: float) -> str:
    """Three decimals below ten, whole numbers from a hundred on."""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _failures(entries: list[Entry]) -> Table:
    rows = table("model", ">run", "how", "why")
    for entry in entries:
        for run in entry.runs:
            if run.status not in ("finished", "pending"):
                rows.add_row(entry.name, str(run.index + 1), run.status, run.note)
    return rows


def _detectable(result: StudyResult) -> str:
    from weft.comparison.detectable import told

    return f"Detectable difference: {told(result.detectable, result.detectable_basis, result.seeds)}"


def _p_value(pair: Difference) -> str:
    if pair.p_holm is None:
        return "not known"
    return "< 0.0001" if pair.p_holm < 0.0001 else f"{pair.p_holm:.4f}"


def _margin(interval: Interval) -> str:
    return "one run" if interval.high is None else f"{interval.high - interval.mean:.4f}"


def _bounds(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "one run"
    return f"{interval.low:.4f} to {interval.high:.4f}"
