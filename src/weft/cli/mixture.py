"""``weft data mixture``: what a mixture of sources reads of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import Json, guarded, print_json
from weft.cli.text import console, section, short, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from weft.data.mixture import MixturePlan


@guarded(lambda given: "a run reads sources that its data.sources names; weft plan CONFIG shows what it reads of each")
def mixture(
        source: Annotated[str, typer.Argument(metavar="gpt3|pile|dolma|FILE", help="A published mixture, or a YAML or "
                                              "JSON file with sources, each with its tokens and weight.")] = "gpt3",
        target: Annotated[float | None, typer.Option("--target", help="Tokens (for the Pile, GiB) that are read in "
                                                     "all; by default what the table or file says.")] = None,
        max_epochs: Annotated[float | None, typer.Option("--max-epochs", help="The most times that any source is "
                                                         "read; others take what it leaves, by weight.")] = None,
        json: Json = False) -> None:
    """Show how many tokens and epochs of every source a mixture is expected to read.

    A published table is shown beside the epochs that its rounded weights imply.
    """
    from weft import api
    from weft.data.mixture import PUBLISHED

    plan = api.data_mixture(source, target=target, max_epochs=max_epochs)
    if json:
        print_json(plan)
        return
    out, unit = console(), plan.mixture.unit
    published = source in PUBLISHED
    if published:
        out.print(plan.mixture.origin)
        section(out, f"{_amount(plan.mixture.target or 0, unit)} read in all", _as_published(plan))
    if not published or target is not None or max_epochs is not None:
        cap = "" if plan.max_epochs is None else f", at most {plan.max_epochs:g} epochs of any source"
        section(out, f"expected of {_amount(plan.target, unit)}{cap}", _as_read(plan))
    for line in _remarks(plan):
        out.print(line)


def _as_published(plan: MixturePlan) -> Table:
    """The table as it was printed, and the epochs that its weights imply at the printed total."""
    rows = table("source", f">{plan.mixture.unit}", ">weight", ">epochs, published", ">implied")
    scale = (plan.mixture.target or 0) / plan.target
    for each in plan.sources:
        weight = "none" if each.source.weight is None else f"{each.weight:.4g}"
        epochs = "none" if each.source.epochs is None else f"{each.source.epochs:g}"
        rows.add_row(each.source.name, _size(each.source.size, plan.mixture.unit), weight, epochs,
                     f"{each.implied * scale:.2f}")
    return rows


def show_sources(out: Console, plan: MixturePlan) -> None:
    """Print what a run reads of each of its sources."""
    section(out, f"{_amount(plan.target, plan.mixture.unit)} read of the sources of the run", _as_read(plan))
    for line in _remarks(plan):
        out.print(line)


def _as_read(plan: MixturePlan) -> Table:
    return table("source", ">holds", ">weight", ">share", ">read", ">epochs", "", rows=[
        (each.source.name, _size(each.source.size, plan.mixture.unit), f"{each.weight:.4g}", f"{each.share:.2%}",
         _size(each.read, plan.mixture.unit), f"{each.epochs:.3f}", "capped" if each.capped else "")
        for each in plan.sources])


def _remarks(plan: MixturePlan) -> list[str]:
    lines = []
    if all(each.source.weight is None for each in plan.sources):
        lines.append("Without weights, every source is read in proportion to its size.")
    elif abs(plan.sum_of_weights - 1) > 1e-9:
        lines.append(f"The weights add up to {plan.sum_of_weights:.6g}; shares are weights divided by that, and "
                     "implied epochs are those of the weights as they stand.")
    if any(each.capped for each in plan.sources):
        lines.append("What capped sources do not take, the others take in proportion to their weights.")
    return lines


def _amount(number: float, unit: str) -> str:
    return f"{_size(number, unit)} {unit}"


def _size(number: float, unit: str) -> str:
    return short(number) if unit == "tokens" else f"{number:,.2f}"
