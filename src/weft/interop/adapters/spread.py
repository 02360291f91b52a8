"""Terms of low rank carried through a family's rules between its tensors and a model's.

A rule joins, splits and reorders the rows of matrices, so it does the same with the rows of B, whose columns stay: the
columns of all terms that a rule concerns stand side by side, each with zeros in the rows that are not its own. Where
the rows of a matrix end up in several, each gets the columns that it needs, with the rows of A that belong to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from weft.core.errors import UnsupportedError
from weft.families.tensor_steps import TRANSPOSE
from weft.families.weights import Rule

Through = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True, eq=False)
class RowTerm:
    """A term s B A beside some rows of a matrix.

    Attributes:
        rows: that it is beside.
        a: A [rank,in].
        b: B [rows,rank].
        magnitude: the lengths of the rows (DoRA), or None.
    """

    rows: slice
    a: Tensor
    b: Tensor
    scale: float
    magnitude: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SpreadTerms:
    """The terms beside a matrix on the other side of a rule: one term of all ``columns`` that its rows have, or several
    where each column belongs to some rows.

    Attributes:
        a: A [R,in] of all columns of the rule.
        b: B [out,R], zero outside of ``owned``.
        owned: which columns belong to which rows.
        scales: s of every column [R].
        magnitude: of every row [out], NaN where there is none; None without DoRA.
    """

    a: Float[Tensor, "R in"]
    b: Float[Tensor, "out R"]
    owned: Bool[Tensor, "out R"]
    scales: Float[Tensor, " R"]
    magnitude: Tensor | None

    def term(self, rows: slice) -> RowTerm | None:
        """The term beside these rows; None where there is none. Columns of different scales get that of the first."""
        columns = self.owned[rows].any(0)
        if not bool(columns.any()):
            return None
        scales = self.scales[columns]
        b = self.b[rows][:, columns] * (scales / scales[0]).to(self.b)
        lengths = None if self.magnitude is None else self.magnitude[rows]
        return RowTerm(rows, self.a[columns], b, float(scales[0]), lengths)

    def divides(self, parts: Mapping[str, slice]) -> bool:
        """Whether these parts share no column, and each column of a part belongs to all its rows."""
        owned = [self.owned[rows] for rows in parts.values()]
        apart = bool((torch.stack([each.any(0) for each in owned]).sum(0) <= 1).all())
        return apart and all(torch.equal(each.any(0), each.all(0)) for each in owned)


def read_through(rule: Rule, given: Sequence[Sequence[RowTerm]],
                 shapes: Sequence[tuple[int, int]]) -> list[SpreadTerms]:
    """Terms beside a file's matrices as terms beside the model's.

    Args:
        given: the terms beside each of the file's.
        shapes: outputs and inputs of each of the file's.

    Raises:
        UnsupportedError: the rule does more than to move rows.
    """
    return _carried(rule.read, _turned(rule), False, given, shapes, rule)


def write_through(rule: Rule, given: Sequence[Sequence[RowTerm]],
                  shapes: Sequence[tuple[int, int]]) -> list[SpreadTerms]:
    """Terms beside a model's matrices as terms beside the file's; arguments and errors are those of `read_through`."""
    return _carried(rule.write, False, _turned(rule), given, shapes, rule)


def _turned(rule: Rule) -> bool:
    """Whether the file stores the matrices [in,out]."""
    return sum(step is TRANSPOSE for step in rule.steps) % 2 == 1


def _carried(move: Through, before: bool, after: bool, given: Sequence[Sequence[RowTerm]],
             shapes: Sequence[tuple[int, int]], rule: Rule) -> list[SpreadTerms]:
    terms = [term for each in given for term in each]
    a, scales = torch.cat([term.a for term in terms]), torch.cat([
        torch.full((len(term.a),), term.scale, dtype=torch.float64) for term in terms])
    placed, owned, lengths, column = list[Tensor](), list[Tensor](), list[Tensor](), 0
    for each, (outs, _) in zip(given, shapes, strict=True):
        b, own = a.new_zeros(outs, len(a)), a.new_zeros(outs, len(a))
        m = a.new_full((outs, 1), torch.nan)
        for term in each:
            columns = slice(column, column := column + len(term.a))
            b[term.rows, columns], own[term.rows, columns] = term.b, 1
            if term.magnitude is not None:
                m[term.rows, 0] = term.magnitude
        placed.append(b)
        owned.append(own)
        lengths.append(m)
    moved = [_move(move, before, after, tensors) for tensors in (placed, owned, lengths)]
    _require_rows_alone(move, before, after, placed, moved[0], a, rule)
    dora = any(term.magnitude is not None for term in terms)
    return [SpreadTerms(a, b, own > 0, scales, m[:, 0] if dora else None) for b, own, m in zip(*moved, strict=True)]


def _move(move: Through, before: bool, after: bool, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each.t() if after else each for each in move([each.t() if before else each for each in tensors])]


def _require_rows_alone(move: Through, before: bool, after: bool, placed: Sequence[Tensor], moved: Sequence[Tensor],
                        a: Tensor, rule: Rule) -> None:
    """Check that whole matrices B A go where the rows of B went."""
    wide = a.double()
    whole = _move(move, before, after, [each.double() @ wide for each in placed])
    if any(each.shape[1:] != a.shape[1:] or not torch.allclose(each, b.double() @ wide)
           for each, b in zip(whole, moved, strict=True)):
        raise UnsupportedError(f"the file stores {', '.join(rule.theirs)} in another form than rows of a matrix.",
                               where="adapter", remedy="Merge the adapter into its model first.")
