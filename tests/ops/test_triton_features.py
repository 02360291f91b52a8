"""The recurrences of features that do not mix, in Triton: interpreted where there is no GPU, at real lengths on one.

`test_forms` holds them to their references on the examples of their operations, too.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from operations_counted import flops_of
from weft.core.errors import UnsupportedError
from weft.ops.diagonal_recurrence import DIAGONAL_RECURRENCE, DiagonalRecurrenceCall
from weft.ops.forms import Operation
from weft.ops.triton import diagonal_recurrence as triton_diagonal
from weft.ops.triton import library
from weft.ops.triton import wkv as triton_wkv
from weft.ops.triton.diagonal_recurrence import ChannelPlan
from weft.ops.wkv import WKV, WKVCall, empty_state

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
DEVICE = "cpu" if library.interpreted() else "cuda"
BOUND = 2e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8, of factors whose
exponents are rounded too: e^x is off by x times 6e-8."""
SMALL = [(ChannelPlan(4, 4, programs=1), (1, 9, 5)), (ChannelPlan(4, 4, shortest=4), (2, 14, 5))]
CASES = SMALL if DEVICE == "cpu" else [(ChannelPlan(), (8, 2048, 2560)), (ChannelPlan(), (2, 2043, 1530)),
                                       (ChannelPlan(programs=1), (2, 4096, 1536)),
                                       (ChannelPlan(64, 8), (1, 4096, 1536)), (ChannelPlan(tile=32), (3, 1000, 100))]
"""Ways to cut the work, and rows, tokens and features: on a GPU those of a real model."""


class Kind(NamedTuple):
    """An operation, whose calls are made by ``make`` from sizes, with documents or without."""

    operation: Operation[Any, Any]
    module: Any
    make: Any
    operator: str


def diagonal(sizes: tuple[int, int, int], documents: bool = False, strength: float = 1.0) -> DiagonalRecurrenceCall:
    rows, steps, width = sizes
    random = torch.Generator().manual_seed(0)
    x, logs = torch.randn(sizes, generator=random), -strength * torch.randn(sizes, generator=random).square()
    if documents:
        logs = logs.masked_fill(begins(rows, steps)[..., None], -math.inf)
    return DiagonalRecurrenceCall(*placed(x, logs, torch.randn(rows, width, generator=random)))


def mean(sizes: tuple[int, int, int], documents: bool = False, strength: float = 1.0) -> WKVCall:
    rows, steps, width = sizes
    random = torch.Generator().manual_seed(0)
    k, v, decay, bonus, before = (torch.randn(shape, generator=random) for shape in (
        sizes, sizes, (width,), (width,), (rows, 3, width)))
    before[:, 1] = before[:, 1].square() + 1
    given = placed(3 * strength * k, v, -0.1 * strength * decay.square(), bonus, before)
    if not documents:
        return WKVCall(*given, starts=None, valid=None)
    valid = torch.arange(steps) < torch.tensor([steps, steps // 2, steps - 1])[:rows, None]
    return WKVCall(*given, starts=(begins(rows, steps) & valid).to(DEVICE), valid=valid.to(DEVICE))


def begins(rows: int, steps: int) -> Tensor:
    """Documents that begin within tiles, beside their borders, and at the first and last token."""
    place = torch.arange(steps) + torch.arange(rows)[:, None]
    return (place % 13 == 3) | (place % 64 == 0) | (place == steps - 1)


def placed(*tensors: Tensor) -> list[Tensor]:
    return [x.to(DEVICE).requires_grad_() for x in tensors]


DIAGONAL = Kind(DIAGONAL_RECURRENCE, triton_diagonal, diagonal, "triton_diagonal_recurrence")
MEAN = Kind(WKV, triton_wkv, mean, "triton_wkv")
KINDS = [pytest.param(DIAGONAL, id="diagonal"), pytest.param(MEAN, id="wkv")]


def outcome(kind: Kind, call: Any, form: str) -> list[Tensor]:
    """Results and all gradients."""
    found, random = kind.operation(call, form), torch.Generator().manual_seed(1)
    results = [found] if isinstance(found, Tensor) else list(found)
    weights = [torch.randn(each.shape, generator=random).to(each) for each in results]
    leaves = [each for each in call if each is not None and each.requires_grad]
    return [each.detach() for each in (*results, *torch.autograd.grad(results, leaves, weights))]


def double(call: Any) -> Any:
    return type(call)(*(each.detach().double().requires_grad_() if each is not None and each.requires_grad else each
                        for each in call))


def require_near(found: list[Tensor], exact: list[Tensor], least: float = 1e-30) -> None:
    """Relative to the largest entry, or to ``least``."""
    for got, expected in zip(found, exact, strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max().clamp(min=least)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("plan", "sizes"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_plan_equals_the_steps_and_gives_the_same_bits_twice(
        kind: Kind, plan: ChannelPlan, sizes: tuple[int, int, int], documents: bool,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens and features that fill no tile and no program, in one segment and in several."""
    monkeypatch.setattr(kind.module, "plan_of", lambda: plan)
    call = kind.make(sizes, documents)
    found = outcome(kind, call, "triton")
    require_near(found, outcome(kind, double(call), "reference"))
    if documents:
        assert all(map(torch.equal, found, outcome(kind, call, "triton")))


def test_plans_cut_rows_only_where_there_are_too_few() -> None:
    for sizes, cut in (((8, 2048, 2560), (80, 8, 1, 2048)), ((1, 4096, 1536), (48, 1, 11, 384)),
                       ((1, 100, 64), (2, 1, 1, 128))):
        assert ChannelPlan().cut(torch.empty(sizes, device="meta")) == cut


@pytest.mark.parametrize("plan", [ChannelPlan(4, 4, programs=1), ChannelPlan(4, 4, shortest=4)])
@pytest.mark.parametrize("kind", KINDS)
def test_decays_of_any_strength_are_exact(kind: Kind, plan: ChannelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decays reach exp(-10^4), which is 0 in float32; keys reach 300, whose exponential is no number there. The
    gradient of a bonus is then a sum of differences of values that are equal to their last bits, so errors are relative
    to 1."""
    monkeypatch.setattr(kind.module, "plan_of", lambda: plan)
    call = kind.make((1, 13, 3), strength=1e4 if kind.operation is DIAGONAL_RECURRENCE else 100.0)
    require_near(outcome(kind, call, "triton"), outcome(kind, double(call), "reference"), least=1.0)


@pytest.mark.parametrize("plan", [ChannelPlan(4, 4, programs=1), ChannelPlan(4, 4, shortest=4)])
def test_a_mean_begins_with_an_empty_state(plan: ChannelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_wkv, "plan_of", lambda: plan)
    call = mean((1, 9, 3))
    call = call._replace(before=empty_state(call.k).detach().requires_grad_())
    require_near(outcome(MEAN, call, "triton"), outcome(MEAN, double(call), "reference"))


def test_states_are_kept_once_a_tile_and_only_for_gradients() -> None:
    call = mean((1, 9, 3))
    with torch.no_grad():
        assert torch.ops.weft.triton_wkv(*call, False)[2].numel() == 0
    assert torch.ops.weft.triton_wkv(*call, True)[2].shape == (-(-9 // triton_wkv.plan_of().tile), 1, 3, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operators_are_well_formed(kind: Kind) -> None:
    """Fake shapes, gradients and aliasing agree with what they do, as `torch.compile` relies on."""
    more = () if kind.operation is DIAGONAL_RECURRENCE else (True,)
    found = torch.library.opcheck(getattr(torch.ops.weft, kind.operator).default, (*kind.make((2, 5, 3), True), *more))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_they_compute_what_they_do_outside(kind: Kind) -> None:
    call = kind.make((2, 5, 3), True)
    torch._dynamo.reset()
    plain = [each.detach() for each in call if each is not None]

    def run(*given: Tensor) -> Any:
        return kind.operation.form("triton").run(type(call)(*given, *([None] * (len(call) - len(given)))))

    with torch.no_grad():
        for got, expected in zip(torch.compile(run, backend="aot_eager", fullgraph=True)(*plain), run(*plain),
                                 strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_pass_can_be_differentiated(kind: Kind) -> None:
    call = kind.make((1, 5, 3))
    for form, given in (("triton", call), ("reference", double(call))):
        found = kind.operation(given, form)
        result = found if isinstance(found, Tensor) else found[0]
        slope, = torch.autograd.grad(result.square().sum(), given[1], create_graph=True)
        second = torch.autograd.grad(slope.square().sum(), given[0])
        if form == "triton":
            twice = [second[0].detach()]
    require_near(twice, [second[0]])


def test_operations_by_hand() -> None:
    """A multiplication and an addition for each number, and twice as many backward; none of a mean."""
    call = diagonal((2, 5, 3))
    assert flops_of(torch.ops.weft.triton_diagonal_recurrence, tuple(call), None) == 2 * 30
    assert flops_of(torch.ops.weft.triton_diagonal_recurrence_backward, (call.x, *call[1:], call.x), None) == 4 * 30
    assert flops_of(torch.ops.weft.triton_wkv, (*mean((2, 5, 3)), True), None) == 0


@pytest.mark.parametrize(("change", "reason"), [
    (lambda x: x.double(), "it runs only in float32"),
    (lambda x: x[:0] if x.dim() == 3 else x, "there are no (features or rows|channels or rows)"),
])
@pytest.mark.parametrize("kind", KINDS)
def test_why_a_call_is_not_served(kind: Kind, change: Any, reason: str) -> None:
    call = kind.make((2, 5, 3))
    moved = type(call)(*(None if each is None else change(each) for each in call))
    with pytest.raises(UnsupportedError, match=f"the form 'triton' .* this call: {reason}"):
        kind.operation(moved, "triton")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_several_dtypes_is_not_served(kind: Kind) -> None:
    call = kind.make((2, 5, 3))
    with pytest.raises(UnsupportedError, match="its tensors are of several dtypes"):
        kind.operation(call._replace(before=call.before.double()), "triton")
