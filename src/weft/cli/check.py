"""``weft check``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import (
    AllowPickles,
    Json,
    Offline,
    Plugin,
    Revision,
    Seed,
    Threads,
    guarded,
    on_disk,
    prepare,
    print_json,
)
from weft.cli.text import console, section, table

if TYPE_CHECKING:
    from rich.table import Table

    from weft.laws.check import CheckResult
    from weft.laws.report import Report

SHOWN = 10
"""Broken cases that are told in full."""


@guarded
def check(target: Annotated[str, typer.Argument(metavar="CONFIG|CHECKPOINT", help="What to check.")],
          seed: Seed = 0, threads: Threads = None, plugin: Plugin = None, json: Json = False, revision: Revision = None,
          offline: Offline = False, allow_pickles: AllowPickles = False) -> None:
    """Run the laws on a model.

    Any cuts, ragged rows, packed documents and selected states must agree with the whole run. A configuration is shrunk
    to a float64 twin; a checkpoint is also checked itself, in its own dtype.
    """
    prepare(plugin, threads)
    from weft import api

    target = str(on_disk(target, revision, offline, allow_pickles))
    with console(err=True).status("reading", spinner="line") as status:
        result = api.check(target, seed=seed, on_law=lambda who, law: status.update(f"{who}: {law}"))
    if json:
        print_json({**dataclasses.asdict(result), "holds": result.holds})
    else:
        _print(result)
    if not result.holds:
        raise typer.Exit(1)


def _print(result: CheckResult) -> None:
    out = console()
    out.print(f"A float64 twin of the configuration ({result.changes}):\n")
    section(out, "the twin", _table(result.twin))
    if result.own is not None:
        section(out, f"the model itself, in {result.dtype}", _table(result.own))
    broken = [finding for report in (result.twin, result.own) if report for finding in report.broken()]
    for finding in broken[:SHOWN]:
        out.print(f"broken: {finding.law}: {finding.case}: {finding.difference:.2e} > {finding.bound:.0e}",
                  style="bold red")
    verb = "finding breaks" if len(broken) == 1 else "findings break"
    verdict = "every law holds" if result.holds else f"{len(broken)} {verb} a law"
    out.print(f"{verdict} ({result.seconds:.1f} s)", style="bold")


def _table(report: Report) -> Table:
    """The worst case of every law; a line each, so what does not fit is cut."""
    rows = table("law", ">cases", ">difference", ">bound", "holds", "where")
    where = rows.columns[-1]
    # Without a share of the room it would take all that it wants, and the names of the laws would go.
    where.no_wrap, where.overflow, where.ratio = True, "ellipsis", 1
    rows.expand = True
    for law, finding in report.worst().items():
        cases = [other for other in report.findings if other.law == law]
        holds = all(other.holds for other in cases)
        rows.add_row(law, str(len(cases)), f"{finding.difference:.1e}", f"{finding.bound:.0e}",
                     "yes" if holds else "NO", finding.case, style=None if holds else "red")
    return rows
