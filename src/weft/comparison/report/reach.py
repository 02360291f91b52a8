"""What so many runs of each model can show: known before the first of them, and shown before anything else."""

from __future__ import annotations

from weft.comparison.findings import TEST_NAMES, Reach, reaches
from weft.comparison.report.view import View
from weft.drawing.markup import Child, Markup, join, tag
from weft.drawing.numbers import MISSING, confidence, fixed, integer
from weft.drawing.table import Column, table


def reach(view: View) -> Markup:
    """For 3, 5 and 10 runs and the study's own number: what |t| must exceed, and the smallest difference found."""
    rows = reaches(view.result)
    basis = tag("p", {"class": "small"}, view.result.detectable_basis) if view.result.detectable_basis else ""
    if not rows:
        return join(tag("p", {"class": "none"}, "Not worked out for this study."), basis)
    columns = [Column("Runs of each model", number=False), Column("|t| must exceed"),
               Column("Detectable difference", "bits per byte")]
    return join(table(_caption(view), columns, [_row(view, each) for each in rows], name="reach",
                      attributes={"class": "reach"}), basis)


def _caption(view: View) -> str:
    result, models = view.result, len(view.result.entries)
    pairs = models * (models - 1) // 2
    return (f"For {TEST_NAMES[result.test]} at {confidence(result.confidence)} and {integer(pairs)} "
            f"{'pair' if pairs == 1 else 'pairs'} of models: what |t| must exceed for the clearest of all pairs to be "
            f"told apart (the first step of Holm's correction){_spreads(view)}, and the smallest true difference that "
            "is found four times of five.")


def _spreads(view: View) -> str:
    return "" if view.result.test == "paired" else ", the less the more alike the two models' runs spread"


def _row(view: View, each: Reach) -> list[Child]:
    own = each.runs == view.result.seeds
    return [join(integer(each.runs), " ", tag("strong", None, "this study")) if own else integer(each.runs),
            MISSING if each.critical is None else limits(each.critical),
            "not known" if each.difference is None else reach_of(each.difference)]


def limits(critical: tuple[float, float]) -> str:
    """What |t| must exceed, at the least and at the most, where these differ."""
    least, most = (fixed(each, 1 if each >= 10 else 2) for each in critical)
    return least if least == most else f"{least} to {most}"


def reach_of(difference: float) -> str:
    """Bits per byte."""
    return fixed(difference, 4 if difference < 0.01 else 3)
