"""Terms carried through a family's rules, against whole matrices s B A carried through them."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from weft.core.errors import UnsupportedError
from weft.families.tensor_steps import TRANSPOSE, Step, fuse, one_by_one, rotary_order, split, ungroup
from weft.families.weights import Rule
from weft.interop.adapters.spread import RowTerm, read_through, write_through

ROWS, INS = (4, 2, 2), 3


def term(rows: slice, count: int, rank: int, scale: float) -> RowTerm:
    generator = torch.Generator().manual_seed(count * 10 + rank)
    a, b = torch.randn(rank, INS, generator=generator), torch.randn(count, rank, generator=generator)
    return RowTerm(rows, a, b, scale, torch.rand(count, generator=generator))


def whole(given: list[RowTerm], outs: int) -> torch.Tensor:
    found = torch.zeros(outs, INS)
    for each in given:
        found[each.rows] += each.scale * each.b @ each.a
    return found


FUSED = Rule(("q", "k", "v"), ("qkv",), (fuse(ROWS), rotary_order(3, 2, 2)))


def test_terms_of_several_matrices_become_one_of_their_columns() -> None:
    """Of different scales, of which the first remains."""
    given = [[term(slice(None), 4, 2, 0.5)], [], [term(slice(None), 2, 1, 3.0)]]
    found, = read_through(FUSED, given, [(rows, INS) for rows in ROWS])
    one = found.term(slice(None))
    assert one is not None and one.scale == 0.5 and one.a.shape == (3, INS)
    expected, = FUSED.read([whole(each, rows) for each, rows in zip(given, ROWS, strict=True)])
    assert_close(whole([one], 8), expected)
    parts = {"q": slice(0, 4), "k": slice(4, 6), "v": slice(6, 8)}
    assert found.divides(parts) and found.term(parts["k"]) is None
    q, v = found.term(parts["q"]), found.term(parts["v"])
    assert q is not None and v is not None and (len(q.a), len(v.a), v.scale) == (2, 1, 3.0)
    assert_close(whole([q, v], 8), expected)
    assert not found.divides({"all": slice(0, 8)})


@pytest.mark.parametrize("steps", [(split((4, 4)),), (TRANSPOSE, split((4, 4)))])
def test_one_matrix_that_is_several_here_gives_each_its_rows(steps: tuple[Step, ...]) -> None:
    rule, given = Rule(("both",), ("gate", "up"), steps), [term(slice(None), 8, 2, 1.5)]
    found = read_through(rule, [given], [(8, INS)])
    turned = whole(given, 8).t() if len(steps) == 2 else whole(given, 8)
    for spread, expected in zip(found, rule.read([turned]), strict=True):
        one = spread.term(slice(None))
        assert one is not None and torch.equal(one.a, given[0].a)
        assert_close(whole([one], 4), expected)
    back, = write_through(rule, [[each] for spread in found if (each := spread.term(slice(None))) is not None],
                          [(4, INS), (4, INS)])
    again = back.term(slice(None))
    assert again is not None and len(again.a) == 4
    assert_close(whole([again], 8), whole(given, 8))
    assert again.magnitude is not None and given[0].magnitude is not None
    assert_close(again.magnitude, given[0].magnitude)


def test_groups_are_put_in_order() -> None:
    rule, given = Rule(("qkv",), ("qkv",), (ungroup(2, (2, 1, 1)),)), [term(slice(None), 8, 2, 1.0)]
    one = read_through(rule, [given], [(8, INS)])[0].term(slice(None))
    assert one is not None
    assert_close(whole([one], 8), rule.read([whole(given, 8)])[0])


REVERSED = one_by_one(lambda tensor: tensor.flip(1), lambda tensor: tensor.flip(1))
"""Another order of inputs."""


def test_a_rule_that_moves_more_than_rows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"the file stores w in another form than rows of a matrix"):
        read_through(Rule(("w",), ("w",), (REVERSED,)), [[term(slice(None), 4, 2, 1.0)]], [(4, INS)])
