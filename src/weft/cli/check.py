"""``weft check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.closing import is_folder, word
from weft.cli.options import Common, Overrides, Seed, guarded, print_json
from weft.cli.text import console, section, table
from weft.core.strict_json import plain

GRADIENTS = " gradients"
"""How the names of laws end that compare gradients."""

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from weft.laws.check import CheckResult
    from weft.laws.faults import Fault
    from weft.laws.report import Report


@guarded(lambda given: f"weft eval {word(given['target'])} measures it" if is_folder(word(given["target"])) else
         f"weft train {word(given['target'])} trains it")
def check(target: Annotated[str, typer.Argument(metavar="CONFIG|CHECKPOINT", help="A configuration or a checkpoint.")],
          overrides: Overrides = None, *,
          length: Annotated[int | None, typer.Option(min=16, help="Tokens in the long rows; by default they pass "
                                                     "the longest border, where that takes only seconds.")] = None,
          seed: Seed = 0,
          common: Annotated[Common, "threads kernels plugin json revision offline allow_pickles"]) -> None:
    """Run the laws on a model.

    A sequence run in pieces, in rows of different lengths, in packed documents and from selected rows of a state must
    give the results of the whole run, on short rows and beyond the model's longest border (a window, the block of a
    kernel). A configuration is checked by small float64 copies, its twins; a checkpoint also as it is, in its own
    dtype.
    """
    common.prepare()
    from weft import api
    from weft.api.examining import require_changeable

    require_changeable(target, overrides or [])
    target = str(common.folder(target))
    with console(err=True).status("reading", spinner="line") as status:
        result = api.check(target, overrides or [], seed=seed, length=length,
                           on_law=lambda who, law: status.update(f"{who}: {law}"))
    if common.json:
        print_json({**plain(result), "holds": result.holds, "laws": _meanings(report for report, _ in
                                                                              _columns(result).values())})
    else:
        _print(result)
    if not result.holds:
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    out = console()
    columns = _columns(result)
    section(out, "what is checked", table("", "", header=False, rows=[(name, text) for name, (_, text) in
                                                                      columns.items()]))
    section(out, "what each law says", _explained([report for report, _ in columns.values()]))
    section(out, f"the largest difference from what is expected{'' if result.holds else '; NO: more than is allowed'}",
            _table({name: report for name, (report, _) in columns.items()}))
    for fault in result.faults:
        _print_fault(out, fault)
    count = len(result.faults)
    broken = f"{count} {'defect breaks' if count == 1 else 'defects break'} a law"
    verdict = "every law holds" if result.holds else broken
    out.print(f"{verdict} ({result.seconds:.1f} s)", style="bold")


def _columns(result: CheckResult) -> dict[str, tuple[Report, str]]:
    """The reports by the name of their column, each with a description of the model that was examined."""
    stable = next((finding.case for finding in result.far.findings if finding.law == "stability"), "")
    found = {"twin": (result.twin, f"the twin, a small model of this structure in float64: {result.changes}; rows of "
                                  f"{result.twin.steps} tokens"),
             "long": (result.long, f"a narrow twin with the windows and lengths of the configuration: rows of "
                                  f"{result.long.steps:,} tokens"),
             "far": (result.far, f"the same twin: rows of {result.far.steps:,} tokens"
                                 f"{_more(result.far.steps, result.border)}{stable and f'; for stability {stable}'}")}
    if result.wide is not None:
        found["wide"] = (result.wide, f"a twin of full width: {result.wide_changes}; rows of {result.wide.steps} "
                                      "tokens")
    if result.own is not None:
        found["own"] = (result.own, f"the model itself, in {result.dtype}: rows of {result.own.steps} tokens")
    if result.own_long is not None:
        found["own long"] = (result.own_long, f"the model itself: rows of {result.own_long.steps:,} tokens"
                             + _more(result.own_long.steps, result.border))
    return found


def _more(steps: int, border: int) -> str:
    """A note that the rows end before the longest border, if they do."""
    return "" if steps > border else (f" (the longest window or length is {border:,} tokens: --length "
                                      f"{border * 3 // 2} goes beyond it)")


def _meanings(reports: Iterable[Report]) -> dict[str, str]:
    """The laws that were run, each with what it says."""
    from weft.laws.plain_words import meaning

    laws = dict.fromkeys(finding.law for report in reports for finding in report.findings)
    return {law: meaning(law, None) for law in laws}


def _explained(reports: list[Report]) -> Table:
    """A row for each law with what it says; those of gradients together."""
    rows, meanings = table("", "", header=False), _meanings(reports)
    for law, text in meanings.items():
        if not law.endswith(GRADIENTS):
            rows.add_row(law, text)
    if any(law.endswith(GRADIENTS) for law in meanings):
        rows.add_row(f"...{GRADIENTS}", "the same, of the gradients of every parameter and input")
    return rows


def _table(reports: dict[str, Report]) -> Table:
    """A row for each law, a column for each report."""
    rows = table("law", *(f">{name}" for name in reports))
    worst = {name: report.worst() for name, report in reports.items()}
    for law in dict.fromkeys(law for each in worst.values() for law in each):
        broken = {name for name, report in reports.items()
                  if any(finding.law == law and not finding.holds for finding in report.findings)}
        shown = [(f"{worst[name][law].difference:.0e}" if law in worst[name] else "")
                 + (" NO" if name in broken else "") for name in reports]
        rows.add_row(law, *shown, style="red" if broken else None)
    return rows


def _print_fault(out: Console, fault: Fault) -> None:
    """Print a defect: where it is, the law it breaks, the evidence, the likely cause, and the other laws it breaks."""
    from rich.padding import Padding

    out.print(f"{fault.layer}, at {fault.path}", style="bold red")
    for line in _fault_lines(fault):
        out.print(Padding(line, (0, 0, 0, 2)))
    out.print()


def _fault_lines(fault: Fault) -> Iterator[str]:
    worst, others = fault.worst, ", ".join(law for law in fault.laws if law != fault.law)
    yield f"breaks {fault.law}: {fault.means}."
    if not worst.case.startswith("raised "):
        first = "" if worst.token is None else f", first at token {worst.token:,}"
        size = "" if worst.counts else f": off by {worst.difference:.1e}, where {worst.bound:.0e} is allowed"
        yield f"Seen in rows of {fault.steps:,} tokens: {worst.case}{size}{first}."
    if fault.cause:
        yield f"Likely cause: {fault.cause}"
    yield f"{fault.count} {'comparison fails' if fault.count == 1 else 'comparisons fail'}" + (
        f", also of the laws {others}." if others else ".")
