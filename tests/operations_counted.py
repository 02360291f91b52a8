"""Operations of one call of an operator, by its formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.analysis.shapes import formula_of


def flops_of(operator: Any, arguments: Sequence[Any], result: Any) -> int:
    formula = formula_of(operator)
    assert formula is not None, f"{operator} has no formula"
    return formula(arguments, result)
