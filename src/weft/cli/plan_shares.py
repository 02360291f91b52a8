"""``weft plan --flops``: where the operations of a forward pass go, with what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.cli.text import section, short, table

if TYPE_CHECKING:
    from rich.console import Console

    from weft.analysis import Plan
    from weft.analysis.shares import Shares


def show_shares(out: Console, found: Plan, shares: Shares) -> None:
    """Print the table of shares, the assumptions, and shares that are often quoted for the model."""
    out.print(f"{found.model} of {found.parameters.total:,} parameters\n", style="bold")
    quoted = shares.quoted
    rows = table("part", ">FLOPs a token", ">share", ">visible pairs", ">share", *([">as quoted"] if quoted else []))
    for each in shares.rows:
        rows.add_row(each.part, short(each.full), f"{each.share_full:.1%}", short(each.visible),
                     f"{each.share_visible:.1%}", *([_percent(quoted.get(each.part))] if quoted else []))
    rows.add_row("all", short(shares.full), "", short(shares.visible), "", *([""] if quoted else []), style="bold")
    section(out, "Where the FLOPs of a forward pass go", rows)
    for line in shares.assumptions:
        out.print(f"assumed: {line}")
    if shares.why_not:
        out.print(f"quoted: {shares.why_not}")


def _percent(share: Any) -> str:
    return "" if share is None else f"{share:.1%}"
