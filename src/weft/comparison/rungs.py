"""The budgets of a ladder of studies, and the study at each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, final

from weft.comparison.study import SIZES
from weft.core.errors import InputError
from weft.drawing.numbers import si

AXES = ("tokens", "flops", "seconds", "parameters")
MOST_RUNGS = 50


@final
class Rungs(NamedTuple):
    """The budgets of a ladder: their kind, and rising amounts."""

    axis: str
    amounts: tuple[float, ...]

    def folder(self, place: int) -> str:
        """The name of the folder of a study."""
        return f"{self.axis}-{self.amounts[place]:.12g}"


def in_words(axis: str, amount: float) -> str:
    """An amount of a budget with its unit: ``316 k tokens``."""
    return f"{si(amount)} {'FLOPs' if axis == 'flops' else axis}"


def parse_rungs(given: str | Mapping[str, Any]) -> Rungs:
    """The budgets that ``tokens=1e5:1e7:5`` (five, equal ratios apart), ``tokens=1e5,1e6`` or
    ``{"tokens": [1e5, 1e6]}`` name. Raises `InputError`: they are fewer than two, do not rise, or are of no kind that a
    ladder has."""
    def refuse(what: str) -> InputError:
        return InputError(f"{what}.", where="ladder", remedy="Give KIND=FIRST:LAST:COUNT or KIND=A,B,C with rising "
                          f"amounts, KIND being {', '.join(AXES[:-1])} or {AXES[-1]}: tokens=1e5:1e7:5.")

    if isinstance(given, str):
        axis, _, text = given.partition("=")
        parts: Sequence[Any] = text.split(":") if ":" in text else text.split(",")
        spaced = ":" in text
    else:
        ((axis, value),) = given.items() if len(given) == 1 else (("", ()),)
        spaced, parts = isinstance(value, str), value.split(":") if isinstance(value, str) else value
    if axis.strip() not in AXES:
        raise refuse(f"{axis.strip()!r} is no kind of budget of a ladder")
    try:
        numbers = [float(str(each).replace("_", "")) for each in parts]
    except (TypeError, ValueError):
        raise refuse(f"{given!r} does not name budgets by numbers") from None
    if spaced:
        if len(numbers) != 3 or numbers[2] != int(numbers[2]) or not 0 < numbers[0] < numbers[1] < math.inf:
            raise refuse(f"{given!r} does not name a first budget, a larger last one and a number of budgets")
        if not 2 <= numbers[2] <= MOST_RUNGS:
            raise refuse(f"{numbers[2]:g} budgets, and a ladder has from 2 to {MOST_RUNGS}")
        first, last, steps = numbers[0], numbers[1], int(numbers[2]) - 1
        numbers = [float(f"{first * (last / first) ** (place / steps):.3g}") for place in range(steps + 1)]
    if not 2 <= len(numbers) <= MOST_RUNGS or not all(0 < each < math.inf for each in numbers) or any(
            after <= before for before, after in pairwise(numbers)):
        raise refuse(f"{given!r} does not name two or more budgets that rise")
    return Rungs(axis.strip(), tuple(numbers))


def at_budget(axis: str, amount: float, stated: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a study at one of the budgets.

    Args:
        stated: the study's file.
        given: keys that come before the file's.

    Raises:
        InputError: ``given`` states the budget that the ladder varies.
    """
    budget = given.get("budget") or stated.get("budget") or {}
    kind = budget.get("kind") if isinstance(budget, Mapping) else None
    own = "length" if axis not in SIZES and kind in SIZES else "budget"
    if own in given and (own == "length" or kind == axis):
        raise InputError(f"the {own} of the study beside a ladder that varies it.", where="ladder",
                         remedy="Leave one of them out.")
    if own == "length":
        return {**given, "length": {axis: amount}}
    changed = {**given, "budget": {**(budget if kind == axis else {}), "kind": axis, "amount": amount}}
    return changed if axis in SIZES else {**changed, "length": None}
