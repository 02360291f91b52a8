"""``weft check``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, Plugin, Seed, Threads, guarded, prepare, print_json

if TYPE_CHECKING:
    from weft.laws.check import CheckResult
    from weft.laws.report import Report


@guarded
def check(target: Annotated[str, typer.Argument(metavar="CONFIG|CHECKPOINT", help="What to check.")],
          seed: Seed = 0, threads: Threads = None, plugin: Plugin = None, json: Json = False) -> None:
    """Run the laws: any cuts, ragged rows, packed documents and selected states must agree with the whole run."""
    prepare(plugin, threads)
    from rich.console import Console

    from weft import api

    console = Console(stderr=True)
    with console.status("reading", spinner="line") as status:
        result = api.check(target, seed=seed, on_law=lambda who, law: status.update(f"{who}: {law}"))
    if json:
        print_json({**dataclasses.asdict(result), "holds": result.holds})
    else:
        _print(result)
    if not result.holds:
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    from rich.console import Console

    console = Console()
    console.print(f"A float64 twin of the configuration (shrunk: {result.changes})", highlight=False)
    console.print(_table(result.twin))
    if result.own is not None:
        console.print(f"The model itself, in {result.dtype}", highlight=False)
        console.print(_table(result.own))
    broken = [finding for report in (result.twin, result.own) if report for finding in report.broken()]
    for finding in broken[:10]:
        console.print(f"broken: {finding.law}: {finding.case}: {finding.difference:.2e} > {finding.bound:.0e}",
                      style="bold red", highlight=False)
    verdict = "every law holds" if result.holds else f"{len(broken)} findings break a law"
    console.print(f"{verdict} ({result.seconds:.1f} s)", style="bold", highlight=False)


def _table(report: Report) -> object:
    from rich.table import Table

    table = Table("law", "cases", "largest difference", "bound", "holds", "where", box=None, pad_edge=False)
    for law, finding in report.worst().items():
        cases = [other for other in report.findings if other.law == law]
        holds = all(other.holds for other in cases)
        table.add_row(law, str(len(cases)), f"{finding.difference:.1e}", f"{finding.bound:.0e}",
                      "yes" if holds else "NO", finding.case, style=None if holds else "red")
    return table
