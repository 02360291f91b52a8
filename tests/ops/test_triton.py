"""The forms in Triton: interpreted where there is no GPU, at real lengths on one; what they serve, cost and say.

`test_forms` holds them to their references on the examples of their operations, too.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import fast_interpreter  # noqa: F401
from operations_counted import flops_of
from weft.core.errors import UnsupportedError
from weft.ops.forms import forced
from weft.ops.gated_scan import SELECTIVE_SCAN, GatedScanCall, gated_scan
from weft.ops.selective_scan_chunks import CHUNK, SelectiveScanCall
from weft.ops.triton import library
from weft.ops.triton import selective_scan as triton_scan
from weft.ops.triton.selective_scan import ScanPlan

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
DEVICE = "cpu" if library.interpreted() else "cuda"
BOUND = 1e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8."""


def scan_call(steps: int, channels: int = 5, states: int = 3, *, rows: int = 2, starts: bool = False,
              strength: float = 1.0, dtype: torch.dtype = torch.float32) -> SelectiveScanCall:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors = (make(rows, steps, channels), 0.3 * make(rows, steps, channels).square(),
               -strength * make(states, channels).exp(), make(rows, steps, states), make(rows, steps, states),
               make(rows, states, channels))
    places = (torch.arange(steps) + torch.arange(rows)[:, None]) % 7 == 3 if starts else None
    return SelectiveScanCall(*(x.to(DEVICE, dtype).requires_grad_() for x in tensors),
                             None if places is None else places.to(DEVICE))


def outcome(x: SelectiveScanCall, form: str) -> list[Tensor]:
    """Results and all gradients."""
    results, generator = SELECTIVE_SCAN(x, form), torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=generator).to(each) for each in results]
    return [*results, *torch.autograd.grad(results, list(x[:6]), weights)]


def require_near(found: list[Tensor], exact: list[Tensor], bound: float = BOUND) -> None:
    for got, expected in zip(found, exact, strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= bound * expected.abs().max()


REAL = (4096, 1536, 16)
SMALL = [(ScanPlan(8, 8, programs=1), (9, 10, 3)), (ScanPlan(16, 8, shortest=CHUNK), (CHUNK + 5, 10, 3))]
CASES = SMALL if DEVICE == "cpu" else [(ScanPlan(8, 8, programs=1), REAL), (ScanPlan(16, 4), REAL),
                                       (ScanPlan(16, 8), REAL)]
"""Ways to cut the work, and tokens, channels and states of a channel: on a GPU those of a real model."""


@pytest.mark.parametrize(("plan", "sizes"), CASES)
def test_the_scan_in_every_plan_equals_the_steps(plan: ScanPlan, sizes: tuple[int, int, int],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens, channels and states that fill no tile, no program and no thread, in one segment and in several; a
    document begins in the last one."""
    monkeypatch.setattr(triton_scan, "plan_of", lambda states, forward: plan)
    begins = (torch.arange(sizes[0]) == sizes[0] - 3)[None].to(DEVICE)
    found, exact = (outcome(scan_call(*sizes, rows=1, dtype=dtype)._replace(starts=begins), form)
                    for form, dtype in (("triton", torch.float32), ("reference", torch.float64)))
    require_near(found, exact)


@pytest.mark.parametrize("states", [1, 6] if DEVICE == "cpu" else [1, 24, 256])
def test_a_channel_may_have_any_number_of_states(states: int) -> None:
    exact = outcome(scan_call(2, 7, states, dtype=torch.float64), "reference")
    require_near(outcome(scan_call(2, 7, states), "triton"), exact)


def test_decays_of_any_strength_are_exact() -> None:
    """Decays reach exp(-10^4), which is 0 in float32."""
    exact = outcome(scan_call(9, 8, strength=1e4, dtype=torch.float64), "reference")
    require_near(outcome(scan_call(9, 8, strength=1e4), "triton"), exact)


def test_tokens_that_are_not_taken_leave_the_state_as_it_was() -> None:
    x = scan_call(6)
    valid = (torch.arange(6) < torch.tensor([4, 0])[:, None]).to(DEVICE)
    starts = (torch.arange(6) == 5).expand(2, -1).to(DEVICE)
    none = torch.zeros_like(x.u[0, 0])
    whole = GatedScanCall(x.u, x.dt, none, x.a, x.b, x.c, none, x.u, x.before, starts)
    short = GatedScanCall(*(each[:1, :4] if each.dim() == 3 else each for each in whole[:8]), x.before[:1], None)
    with torch.no_grad(), forced({"selective_scan": "triton"}):
        after, expected = gated_scan(whole, valid)[1], gated_scan(short)[1]
    assert_close(after[:1], expected)  # the softplus of the last numbers of a tensor may round another way
    assert torch.equal(after[1], x.before[1])


def test_states_are_kept_once_a_chunk_and_only_for_gradients() -> None:
    x, kept = scan_call(CHUNK + 1, rows=1), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        SELECTIVE_SCAN(x, "triton")
    assert sum(each.numel() for each in kept) == sum(each.numel() for each in x[:6]) + 2 * x.before.numel()
    with torch.no_grad():
        assert torch.ops.weft.triton_selective_scan(*x, False)[2].numel() == 0


def test_the_operator_is_well_formed() -> None:
    """Fake shapes, gradients and aliasing agree with what it does, as `torch.compile` relies on."""
    found = torch.library.opcheck(torch.ops.weft.triton_selective_scan.default, (*scan_call(2, starts=True), True),
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_operations_by_hand() -> None:
    """As for the form in C: two products forward, five backward."""
    x, each = scan_call(9), 2 * 9 * 5 * 3
    assert flops_of(torch.ops.weft.triton_selective_scan, (*x, True), None) == 2 * 2 * each
    backward = (x.u, x.before, *x[:5], None, None)
    assert flops_of(torch.ops.weft.triton_selective_scan_backward, backward, None) == 5 * 2 * each


@pytest.mark.parametrize(("x", "reason"), [
    (scan_call(2, dtype=torch.float64), "it runs only in float32"),
    (scan_call(2)._replace(a=torch.ones(3, 5, dtype=torch.float64)), "its tensors are of several dtypes"),
    (scan_call(2, 1, 257), "a channel has more than 256 states"),
    (scan_call(2, rows=0), "there are no rows, channels or states"),
])
def test_why_a_scan_is_not_served(x: SelectiveScanCall, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"kernels.selective_scan: the form 'triton' .* this call: {reason}"):
        SELECTIVE_SCAN(x, "triton")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What is found out of this process is found out again, here and afterwards."""
    known = (library._why_not, library.interpreted)
    for each in known:
        each.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for each in known:
        each.cache_clear()


@pytest.mark.parametrize(("mode", "devices", "why"), [("0", {"cuda"}, None), ("1", {"cuda", "cpu"}, "is slow")])
def test_only_the_interpreter_runs_on_a_processor_and_never_unasked(fresh: pytest.MonkeyPatch, mode: str,
                                                                     devices: set[str], why: str | None) -> None:
    fresh.setenv(library.VARIABLE, mode)
    assert library.devices() == devices
    assert why is None or str(library.offer().why_not).endswith(why)
    assert (library.offer().why_not is None) is (why is None)
    assert ("interpreted on the processor" in library.describe()) is (why is not None)


def test_without_a_c_compiler_that_is_the_reason(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(library.VARIABLE, "0")
    fresh.setenv("PATH", "")
    fresh.delenv("CC", raising=False)
    assert library.why_not() == "triton finds no C compiler"
    assert library.describe().endswith("of no use: triton finds no C compiler. Install gcc or clang, or name one as CC")


def test_where_triton_is_missing_that_is_the_reason(fresh: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    fresh.setattr(library, "find_spec", lambda name: None)
    fresh.setattr(library, "version", none)
    assert library.why_not() == "triton is not installed"
    assert library.describe() == ("none, triton is not installed: it comes with PyTorch for CUDA, or by pip install "
                                  "triton")
    with pytest.raises(UnsupportedError, match="triton is not installed"):
        SELECTIVE_SCAN(scan_call(2), "triton")
