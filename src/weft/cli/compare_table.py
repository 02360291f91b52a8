"""A study's result as tables, for a terminal of 100 columns or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.cli.text import console, in_bytes, section, short, table

if TYPE_CHECKING:
    from rich.table import Table

    from weft.comparison.results import Difference, Entry, Interval, StudyResult

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def print_study(result: StudyResult) -> None:
    """Everything that the study found, from best to worst."""
    out = console()
    out.width = max(out.width, 100)
    out.print(f"{result.name}: {result.budget.statement}")
    out.print(f"{result.corpus.name}, {result.corpus.validation_bytes:,} bytes of test text; {result.seeds} runs of "
              f"each model; intervals at {result.confidence:.0%}")
    out.print()
    entries = _ordered(result)
    section(out, "Bits per byte (models that share a letter are not told apart)", _quality(result, entries))
    section(out, "Size and cost (means over runs)", _cost(entries))
    section(out, "Differences, first minus second, in bits per byte", _differences(result))
    section(out, "What was matched, over the models that gradients train", _matched(result))
    section(out, "Runs that did not finish", _failures(entries))
    for line in (*result.notes, _detectable(result)):
        out.print(f"- {line}")


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
        lr = "counted" if entry.lr is None else f"{entry.lr:.2g}{'!' if entry.edge else ''}"
        rows.add_row(entry.name, "failed" if interval is None else f"{interval.mean:.4f}",
                     "" if interval is None else _margin(interval), _letters(result, entry.name),
                     f"{len(values)}/{len(entry.runs)}", lr, entry.kind)
    return rows


def _cost(entries: list[Entry]) -> Table:
    rows = table("model", ">parameters", ">embeddings", ">FLOPs", ">tokens", ">seconds", ">tokens/s", ">memory",
                 ">state")
    for entry in entries:
        runs = entry.finished
        count = max(1, len(runs))
        flops = sum(run.flops for run in runs) / count
        state = entry.decode[-1] if entry.decode else None
        rows.add_row(
            entry.name, short(entry.parameters), short(entry.embedding_parameters) if entry.trainable else "",
            short(flops) if entry.trainable and runs else "", short(sum(run.tokens for run in runs) / count),
            f"{sum(run.seconds for run in runs) / count:,.1f}",
            short(sum(run.tokens_per_second for run in runs) / count),
            in_bytes(max((run.peak_memory_bytes for run in runs), default=0)),
            "" if state is None else f"{in_bytes(state.state_bytes)} at {state.context:,}")
    return rows


def _differences(result: StudyResult) -> Table:
    rows = table("first", "second", ">difference", ">over seeds", ">over documents", ">p (Holm)", "")
    for pair in result.differences:
        verdict = "tied" if pair.tied else f"{pair.first if pair.over_seeds.mean < 0 else pair.second} is better"
        crosses = "; the order changes in training" if pair.crosses else ""
        rows.add_row(pair.first, pair.second, f"{pair.over_seeds.mean:+.4f}", _bounds(pair.over_seeds),
                     _bounds(pair.over_documents), _p_value(pair), verdict + crosses)
    return rows


def _matched(result: StudyResult) -> Table:
    rows = table("quantity", "held equal", ">largest over smallest")
    for each in result.budget.matched:
        rows.add_row(each.quantity, "yes" if each.matched else "no", f"+{each.spread:.1%}")
    return rows


def _failures(entries: list[Entry]) -> Table:
    rows = table("model", ">run", "how", "why")
    for entry in entries:
        for run in entry.runs:
            if run.status not in ("finished", "pending"):
                rows.add_row(entry.name, str(run.index + 1), run.status, run.note)
    return rows


def _detectable(result: StudyResult) -> str:
    if result.detectable is None:
        return f"Detectable difference: not known. {result.detectable_basis}"
    return f"Detectable difference: {result.detectable:.4f} bits per byte. {result.detectable_basis}"


def _p_value(pair: Difference) -> str:
    if pair.p_holm is None:
        return "not known"
    return "< 0.0001" if pair.p_holm < 0.0001 else f"{pair.p_holm:.4f}"


def _margin(interval: Interval) -> str:
    return "one run" if interval.high is None else f"{interval.high - interval.mean:.4f}"


def _bounds(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "one run"
    return f"{interval.low:+.4f} to {interval.high:+.4f}"
