"""Attention in C, in every instruction set of this processor, against the formulas in float64; and what it keeps to."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ops.native_sets import TensorKeys
from weft.masks.visible import KeyInterval
from weft.ops.attention import ATTENTION, AttentionCall, ScoreTerm, WrittenTerm
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.native_attention import native, native_skipped

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
SCALE = 0.7
BOUND = 1e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8, and exponentials of
scores near 30 with an error of 2e-6 in the score."""


class Case(NamedTuple):
    """Rows, queries and keys; query heads, key heads, their features and those of values; who attends to what."""

    interval: KeyInterval
    queries: int
    keys: int
    heads: tuple[int, int] = (2, 2)
    sizes: tuple[int, int] = (8, 8)
    bias: Tensor | None = None
    sinks: Tensor | None = None


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1.5


class ByDistance(ScoreTerm):
    """Numbers for each head and each difference of key and query from -200 on."""

    by_distance = True

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def dense(self) -> Tensor:
        raise NotImplementedError

    def at(self, queries: slice, keys: Any) -> Tensor:
        raise NotImplementedError

    def distances(self, least: int, count: int) -> Tensor:
        return self.table[..., least + 200:least + 200 + count]


STARTS = torch.tensor([[0] * 40 + [40] * 30 + [70] * 30, [0] * 99 + [99]])
CASES = {
    "one": Case(KeyInterval(0, None, 0), 1, 1),
    "causal": Case(KeyInterval(0, None, 0), 7, 7, (6, 2), (3, 5)),
    "a tile": Case(KeyInterval(0, None, 0), 64, 64, (1, 1), (64, 64)),
    "past a tile": Case(KeyInterval(0, None, 0), 131, 131, (2, 1), (65, 17)),
    "large heads": Case(KeyInterval(0, None, 0), 66, 66, (1, 1), (256, 200)),
    "own key alone": Case(KeyInterval(0, 0, 0), 70, 70),
    "window": Case(KeyInterval(0, 9, 0), 200, 200, (3, 1), (4, 6)),
    "window of a tile": Case(KeyInterval(0, 63, 0), 150, 150),
    "wide window": Case(KeyInterval(0, 100, 0), 250, 250),
    "both sides": Case(KeyInterval(0, 40, 7), 140, 140),
    "later keys alone": Case(KeyInterval(0, -3, 40), 90, 90),
    "everything": Case(KeyInterval(0, None, None), 70, 133, (4, 2), (9, 1)),
    "after others": Case(KeyInterval(70, None, 0), 30, 100, (4, 4), (16, 16)),
    "window after others": Case(KeyInterval(60, 33, 0), 70, 130),
    "documents": Case(KeyInterval(0, None, 0, STARTS), 100, 100, (4, 2)),
    "padding": Case(KeyInterval(0, None, None, stop=torch.tensor([[89], [-1]])), 100, 100),
    "bias": Case(KeyInterval(0, None, 0), 131, 131, (4, 2), bias=numbers(1, 4, 401, seed=5)),
    "bias in a window": Case(KeyInterval(0, 70, 0, STARTS), 100, 100, bias=numbers(1, 1, 401, seed=5)),
    "bias by row": Case(KeyInterval(0, None, None, stop=torch.tensor([[69], [3]])), 70, 70,
                        bias=numbers(2, 2, 401, seed=5)),
    "sinks": Case(KeyInterval(0, None, 0), 131, 131, (4, 2), sinks=numbers(4, seed=6) * 4),
    "sinks, bias and padding": Case(KeyInterval(0, 50, None, stop=torch.tensor([[89], [-1]])), 100, 100,
                                    bias=numbers(1, 2, 401, seed=5), sinks=numbers(2, seed=6)),
    "bias after others": Case(KeyInterval(60, 33, 4), 70, 130, bias=numbers(2, 1, 401, seed=5)),
}


def inputs(case: Case, rows: int = 2) -> list[Tensor]:
    heads, groups = case.heads
    shapes = ((case.queries, heads, case.sizes[0]), (case.keys, groups, case.sizes[0]),
              (case.keys, groups, case.sizes[1]), (case.queries, heads, case.sizes[1]))
    q, *others = (numbers(rows, *shape, seed=seed) for seed, shape in enumerate(shapes))
    return [q * min(1.0, 64 / case.sizes[0]), *others]  # scores of long heads near 30 too, as the bound has them


def allowed(case: Case, row: int) -> np.ndarray[Any, Any]:
    """True where a query attends to a key, written from the definition of an interval."""
    of = case.interval

    def may(i: int, j: int) -> bool:
        own = of.offset + i
        first, last = (None if x is None else int(x.expand(2, case.queries)[row, i]) for x in (of.start, of.stop))
        return ((of.back is None or own - j <= of.back) and (of.ahead is None or j - own <= of.ahead)
                and (first is None or j >= first) and (last is None or j <= last))

    return np.array([[may(i, j) for j in range(case.keys)] for i in range(case.queries)])


def by_hand(case: Case, q: Any, k: Any, v: Any, dy: Any) -> list[np.ndarray[Any, Any]]:
    """y = softmax(scale q k' + bias + mask) v and its gradients (Dao et al. 2022, appendix B.2), head by head in
    float64; the bias is a number for each distance of key and query, whose slope sums those of its scores."""
    y, dq, dk, dv = (np.zeros(x.shape) for x in (dy, q, k, v))
    bias = np.zeros((1, 1, 401)) if case.bias is None else case.bias.double().numpy()
    dbias, full = np.zeros(bias.shape), np.broadcast_to(bias, (len(q), case.heads[0], 401))
    dsinks = np.zeros(case.heads[0])
    apart = np.arange(case.keys) - np.arange(case.queries)[:, None] - case.interval.offset + 200
    share = case.heads[0] // case.heads[1]
    for row, h in itertools.product(range(len(q)), range(case.heads[0])):
        queries, keys, values, slope = q[row, :, h], k[row, :, h // share], v[row, :, h // share], dy[row, :, h]
        may = allowed(case, row)
        scores = np.where(may, SCALE * queries @ keys.T + full[row, h, apart.clip(0, 400)], -np.inf)
        sink = -np.inf if case.sinks is None else float(case.sinks[h])
        top = np.where(may.any(1), np.maximum(scores.max(1), sink), 0)[:, None]
        total = np.exp(scores - top).sum(1, keepdims=True) + np.exp(sink - top)
        weights = np.exp(scores - top) / np.maximum(total, 1e-300)
        y[row, :, h] = weights @ values
        falling = slope @ values.T
        inner = weights * (falling - (falling * weights).sum(1, keepdims=True))
        dsinks[h] -= ((falling * weights).sum(1) * (np.exp(sink - top) / np.maximum(total, 1e-300))[:, 0]).sum()
        np.add.at(dbias[row % len(dbias), h % dbias.shape[1]], apart.clip(0, 400), inner)
        dq[row, :, h] = SCALE * inner @ keys
        dk[row, :, h // share] += SCALE * inner.T @ queries
        dv[row, :, h // share] += weights.T @ slope
    return [y, dq, dk, dv] + ([] if case.bias is None else [dbias]) + ([] if case.sinks is None else [dsinks])


def computed(case: Case, tensors: list[Tensor]) -> list[Tensor]:
    """The result and the gradients in C."""
    leaves = [x.detach().requires_grad_() for x in (*tensors[:3], case.bias, case.sinks) if x is not None]
    terms = () if case.bias is None else (ByDistance(leaves[3]),)
    y = native(*leaves[:3], interval=case.interval, scale=SCALE, terms=terms,
               sinks=None if case.sinks is None else leaves[-1])
    return [y.detach(), *torch.autograd.grad(y, leaves, tensors[3])]


def require_near(found: list[Tensor], wanted: list[np.ndarray[Any, Any]]) -> None:
    for own, exact in zip(found, wanted, strict=True):
        assert np.abs(own.double().numpy() - exact).max() <= BOUND * max(np.abs(exact).max(), 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_in_every_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    tensors = inputs(case)
    wanted = by_hand(case, *(x.double().numpy() for x in tensors))
    for instructions in LIBRARY.sets:
        monkeypatch.setenv(VARIABLE, instructions)
        require_near(computed(case, tensors), wanted)


def test_a_query_that_attends_to_nothing_gives_zeros_and_no_gradient() -> None:
    case = CASES["padding"]
    y, dq, dk, dv = computed(case, inputs(case))
    assert y[0].abs().min() > 0
    for blind in (y[1], dq[1], dk[1], dv[1], dk[0, 90:], dv[0, 90:]):
        assert blind.abs().max() == 0


def test_tensors_are_read_where_they_are() -> None:
    case = Case(KeyInterval(0, 30, 0), 90, 90, (4, 4), (16, 16))
    q, k, v, dy = inputs(case)
    whole = torch.cat([q, k, v], 2)
    views = [*whole.split([4, 4, 4], 2), dy]
    assert not views[0].is_contiguous()
    turned = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in (q, k, v, dy)]
    assert turned[0].stride(-1) != 1
    for same in (views, turned):
        for found, wanted in zip(computed(case, same), computed(case, [q, k, v, dy]), strict=True):
            assert torch.equal(found, wanted)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    case, before = CASES["documents"], torch.get_num_threads()
    outcomes = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outcomes.append(computed(case, inputs(case)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in outcomes[1:] for a, b in zip(outcomes[0], other, strict=True))


@pytest.mark.parametrize("name", ["past a tile", "bias", "padding"])
def test_bfloat16_is_rounded_once(name: str) -> None:
    """Results and gradients are those of the rounded numbers within a rounding to eight bits each; the inner products
    of the backward pass use the rounded result, which adds one more."""
    case = CASES[name]
    narrow = [x.bfloat16() for x in inputs(case)]
    found = computed(case, narrow)
    assert [x.dtype for x in found[:4]] == [torch.bfloat16] * 4
    for own, exact in zip(found, by_hand(case, *(x.double().numpy() for x in narrow)), strict=True):
        assert np.abs(own.double().numpy() - exact).max() <= 2**-7 * max(np.abs(exact).max(), 1e-3)


def test_large_scores_stay_finite_and_a_nan_is_passed_on() -> None:
    case = Case(KeyInterval(0, None, 0), 70, 70)
    q, k, v, dy = inputs(case)
    for found in computed(case, [q * 1e4, k, v, dy]):
        assert found.isfinite().all()
    k[0, 50, 0, 0] = torch.nan
    y = computed(case, [q, k, v, dy])[0]
    assert y[0, 50:, 0].isnan().all()
    assert y[0, :50].isfinite().all() and y[1].isfinite().all() and y[0, :, 1].isfinite().all()


def test_the_operators_keep_what_they_declare() -> None:
    """Shapes, schema and autograd registrations, as PyTorch itself checks them."""
    case = Case(KeyInterval(0, 5, 0), 70, 70, (4, 2))
    q, k, v, dy = inputs(case)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    leaves += [numbers(1, 4, 6, seed=4).requires_grad_(), numbers(4, seed=6).requires_grad_()]
    rest = (None, torch.full((2, 70), 60, dtype=torch.int32), SCALE, 0, 5, 0)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.weft.native_attention.default, (*leaves, *rest), test_utils=checks)
    with torch.no_grad():
        y, logs = torch.ops.weft.native_attention(*leaves, *rest)
        torch.library.opcheck(torch.ops.weft.native_attention_backward.default,
                              (dy, *(x.detach() for x in leaves), *rest[:2], y, logs, True, *rest[2:]),
                              test_utils=checks)


def test_second_derivatives_are_those_of_the_formula() -> None:
    case = Case(KeyInterval(3, 4, 2, start=torch.tensor([[2], [0]]), stop=torch.tensor([[7], [9]])), 6, 12, (4, 2),
                (3, 5))
    tensors, table, sinks = inputs(case), numbers(1, 4, 401, seed=5), numbers(4, seed=6)

    def twice(run: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [x.to(dtype).requires_grad_() for x in (*tensors[:3], table, sinks)]
        slopes = torch.autograd.grad(run(*leaves), leaves, tensors[3].to(dtype), create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in slopes), leaves)

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        apart = torch.arange(12) - torch.arange(6)[:, None] - 3 + 200
        mask = torch.stack([torch.from_numpy(allowed(case, row)) for row in range(2)])[:, None]
        return ATTENTION.form("reference").run(
            AttentionCall(q, k, v, SCALE, TensorKeys(mask), (WrittenTerm(bias[..., apart]),), sinks=sinks))

    found = twice(lambda q, k, v, bias, sinks: native(q, k, v, interval=case.interval, scale=SCALE, sinks=sinks,
                                                      terms=(ByDistance(bias),)), torch.float32)
    for own, exact in zip(found, twice(plain, torch.float64), strict=True):
        assert_close(own.double(), exact, rtol=0, atol=BOUND * float(exact.abs().max()))


def test_operations_outside_the_blocks_are_not_counted() -> None:
    case = Case(KeyInterval(10, 20, 3), 150, 160, (4, 2), (8, 6))
    q, k, v, _ = (torch.empty(x.shape, device="meta") for x in inputs(case))
    pairs = sum(any(10 + i - 20 <= j <= 10 + i + 3 for i in range(first, min(first + 64, 150)))
                * (min(first + 64, 150) - first) for first in range(0, 150, 64) for j in range(160))
    skipped = native_skipped(q, k, v, None, None, None, None, SCALE, 10, 20, 3)
    assert skipped == 2 * 2 * 4 * (8 + 6) * (150 * 160 - pairs)
