"""The order of two models during training: whether it holds, and where it changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from weft.comparison.results import CurvePoint
from weft.comparison.statistics import Interval
from weft.comparison.study_result import GapPoint, StudyResult

OrderKind: TypeAlias = Literal["holds", "changes", "open", "unknown"]
"""Of two models' order from share to share of the budget:

holds      the mean difference keeps its sign
changes    some interval lies wholly on the other side of zero from the last one's
open       the mean changes its sign, but not from beyond one interval to beyond another
unknown    fewer than two shares at which both are known
"""


class Order(NamedTuple):
    """How the order of two models went.

    Attributes:
        between: the two neighbouring shares at which the mean difference last changed its sign; None if it never did.
        since: the first share at which it is known.
        ends_beyond: the last interval leaves zero out.
    """

    kind: OrderKind
    between: tuple[float, float] | None
    since: float | None
    ends_beyond: bool


def order_of(gaps: Sequence[GapPoint]) -> Order:
    """The order of a pair from its gaps, by rising share. A difference of exactly zero has the sign before it."""
    if len(gaps) < 2:
        return Order("unknown", None, gaps[0].share if gaps else None, False)
    between, sign = None, 0
    for before, gap in zip([None, *gaps], gaps, strict=False):
        now = (gap.difference.mean > 0) - (gap.difference.mean < 0)
        if before is not None and sign and now == -sign:
            between = (before.share, gap.share)
        sign = now or sign
    kind: OrderKind = "holds" if between is None else "open"
    if crosses([gap.difference for gap in gaps]):
        kind = "changes"
    return Order(kind, between, gaps[0].share, _side(gaps[-1].difference) != 0)


class Stretch(NamedTuple):
    """Neighbouring shares of the budget, ``first`` to ``last``, at which the order is the same, from best to worst."""

    first: float
    last: float
    names: tuple[str, ...]


def orders(result: StudyResult) -> list[Stretch]:
    """The order of the trained models in the mean, at the shares of the budget that every finished run of them has;
    none with fewer than two models."""
    trained = [entry for entry in result.entries if entry.trainable and entry.finished]
    shares = sorted({gap.share for pair in result.differences for gap in pair.gaps})
    found: list[Stretch] = []
    for share in shares if len(trained) > 1 else ():
        values = {entry.name: [at_share(run.curve, share) for run in entry.finished] for entry in trained}
        means = {name: sum(known) / len(known) for name, each in values.items()
                 if (known := [bits for bits in each if bits is not None]) and len(known) == len(each)}
        if len(means) == len(trained):
            names = tuple(sorted(means, key=lambda name: (means[name], name)))
            if found and found[-1].names == names:
                found[-1] = found[-1]._replace(last=share)
            else:
                found.append(Stretch(share, share, names))
    return found


def words(order: Order) -> str:
    """The order of a pair in a few words."""
    if order.kind == "unknown":
        return "not known"
    if order.between is None:
        return f"holds from {order.since:.0%} on"
    where = f"between {order.between[0]:.0%} and {order.between[1]:.0%}"
    if order.kind == "changes":
        return f"changes {where}"
    return f"means cross {where}, undecided {'before' if order.ends_beyond else 'at the end'}"


def crosses(gaps: Sequence[Interval]) -> bool:
    """Whether the order changes on the way: some gap's interval lies wholly on the other side of zero from the last
    one's."""
    return bool(gaps) and _side(gaps[-1]) != 0 and any(_side(gap) == -_side(gaps[-1]) for gap in gaps[:-1])


def _side(gap: Interval) -> int:
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return 0
    return 1 if gap.low > 0 else -1


def at_share(curve: Sequence[CurvePoint], share: float) -> float | None:
    """Bits per byte at a share of a run's steps, between two checkpoints on the line that joins them; None before the
    first."""
    if not curve:
        return None
    wanted = share * curve[-1].step
    for before, after in itertools.pairwise(curve):
        if before.step <= wanted <= after.step:
            part = (wanted - before.step) / (after.step - before.step)
            return before.bits_per_byte + part * (after.bits_per_byte - before.bits_per_byte)
    return curve[-1].bits_per_byte if wanted >= curve[-1].step else None
