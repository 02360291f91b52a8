"""The selective scan: its forms against the NumPy oracle, derivatives, resets, what is kept, costs, threads, choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from operations_counted import flops_of
from oracles import selective as oracle
from weft.ops.forms import forced
from weft.ops.gated_scan import GATED_SCAN, SELECTIVE_SCAN, GatedScanCall, gated_scan
from weft.ops.native import library
from weft.ops.native.library import VARIABLE, Incomplete, NativeLibrary, loaded
from weft.ops.selective_scan_chunks import CHUNK, SelectiveScanCall

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
BOUND = 1e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8."""


def call(steps: int, channels: int = 5, states: int = 3, *, starts: bool = False, dtype: torch.dtype = torch.float64,
         strength: float = 1.0) -> SelectiveScanCall:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tensors = (make(2, steps, channels), make(2, steps, channels).square(), -strength * make(states, channels).exp(),
               make(2, steps, states), make(2, steps, states), make(2, states, channels))
    places = (torch.arange(steps) + torch.arange(2)[:, None]) % 7 == 3 if starts else None
    return SelectiveScanCall(*(x.to(dtype).requires_grad_() for x in tensors), places)


def outcome(x: SelectiveScanCall, form: str) -> list[Tensor]:
    """Results and all gradients."""
    results, generator = SELECTIVE_SCAN(x, form), torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in results]
    return [*results, *torch.autograd.grad(results, list(x[:6]), weights)]


@pytest.mark.parametrize("form", ["reference", "operator"])
@pytest.mark.parametrize("starts", [False, True])
def test_values_match_the_oracle(form: str, starts: bool) -> None:
    x = call(CHUNK + 9, starts=starts)
    y, after = SELECTIVE_SCAN(x, form)
    for row in range(2):
        u, dt, a, b, c, before = (each.detach().numpy() for each in (x.u[row], x.dt[row], x.a.t(), x.b[row], x.c[row],
                                                                     x.before[row].t()))
        begins = None if x.starts is None else x.starts[row].tolist()
        values, last = oracle.selective_scan(u, dt, a, b, c, before, begins)
        np.testing.assert_allclose(y[row].detach().numpy(), values, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(after[row].t().detach().numpy(), last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize("channels", [1, 63, 64, 150])
def test_c_equals_the_steps_in_every_instruction_set(instructions: str, channels: int,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """At lengths around the chunk, and channels around the slice of a piece of work."""
    monkeypatch.setenv(VARIABLE, instructions)
    for steps in (CHUNK, 2 * CHUNK + 3):
        exact = outcome(call(steps, channels, starts=True), "reference")
        found = outcome(call(steps, channels, starts=True, dtype=torch.float32), "native")
        for expected, got in zip(exact, found, strict=True):
            assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max()


@pytest.mark.parametrize("form", ["operator", "native"])
@pytest.mark.parametrize("strength", [40.0, 1e4])
def test_decays_of_any_strength_are_exact(form: str, strength: float) -> None:
    """Decays reach exp(-10^5), which is 0 in float32."""
    exact = outcome(call(CHUNK + 9, 20, strength=strength), "reference")
    for expected, got in zip(exact, outcome(call(CHUNK + 9, 20, strength=strength, dtype=torch.float32), form),
                             strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("form", "dtype"), [("operator", torch.float64), ("native", torch.float32)])
def test_second_derivatives_are_those_of_the_steps(form: str, dtype: torch.dtype) -> None:
    found = []
    for each in ("reference", form):
        x = call(7, dtype=dtype, starts=True)
        y, after = SELECTIVE_SCAN(x, each)
        first = torch.autograd.grad(y.square().sum() + after.square().sum(), list(x[:6]), create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in first), list(x[:6])))
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-10 if dtype == torch.float64 else 1e-4, atol=1e-4 * float(
            expected.abs().max()) if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize(("form", "dtype"), [("operator", torch.float64), ("native", torch.float32)])
def test_only_one_of_the_results_may_have_a_gradient(form: str, dtype: torch.dtype) -> None:
    for taken in (0, 1):
        slopes = []
        for each in ("reference", form):
            x = call(CHUNK + 3, dtype=dtype)
            slopes.append(torch.autograd.grad(SELECTIVE_SCAN(x, each)[taken].sum(), list(x[:6]), allow_unused=True))
        for expected, got in zip(*slopes, strict=True):
            assert_close(got, torch.zeros_like(got) if expected is None else expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["selective_scan", "native_selective_scan"])
def test_the_operators_are_well_formed(name: str) -> None:
    """Fake shapes, gradients and aliasing agree with what they do, as `torch.compile` relies on."""
    for keeps in (False, True):
        found = torch.library.opcheck(getattr(torch.ops.weft, name).default, (*call(5, dtype=torch.float32,
                                                                                    starts=True), keeps),
                                      test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("form", ["step", "operator", "native"])
def test_what_a_state_was_before_a_document_has_no_effect(form: str) -> None:
    dtype = torch.float32
    x = call(1, dtype=dtype)._replace(starts=torch.tensor([[True], [False]]))
    y, after = SELECTIVE_SCAN(x, form)
    reached = torch.autograd.grad(y.sum() + after.sum(), x.before)[0]
    assert not reached[0].any() and reached[1].all()


def gated(x: SelectiveScanCall) -> GatedScanCall:
    """With steps on both sides of where the softplus turns, and a gate that is a half of a wider tensor."""
    generator, channels = torch.Generator().manual_seed(2), x.u.shape[2]

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(x.u.dtype).requires_grad_()

    wide = make(*x.u.shape[:2], 2 * channels)
    return GatedScanCall(x.u, 10 * make(*x.u.shape), make(channels), x.a, x.b, x.c, make(channels),
                         wide[..., channels:], x.before, x.starts)


def gated_outcome(x: GatedScanCall, form: str) -> list[Tensor]:
    """Results and all gradients."""
    results, generator = GATED_SCAN(x, form), torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in results]
    return [*results, *torch.autograd.grad(results, list(x[:9]), weights)]


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize(("channels", "starts"), [(1, True), (64, False), (150, False), (64, True)])
def test_the_gated_scan_in_c_equals_the_steps_in_every_instruction_set(
        instructions: str, channels: int, starts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With five states, so that four go abreast and one is left."""
    monkeypatch.setenv(VARIABLE, instructions)
    exact = gated_outcome(gated(call(CHUNK + 3, channels, 5, starts=starts)), "reference")
    found = gated_outcome(gated(call(CHUNK + 3, channels, 5, starts=starts, dtype=torch.float32)), "native")
    for expected, got in zip(exact, found, strict=True):
        assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max()


def test_steps_far_on_either_side_are_those_of_the_softplus() -> None:
    """From exp(-80), of which float32 keeps every digit, to where softplus(x) is x."""
    step = torch.linspace(-80, 80, 333)
    zero = torch.zeros(1, 1, 333)
    ones = torch.ones(1, 1, 333)
    x = GatedScanCall(ones, step[None, None], zero[0, 0], zero[0], ones[..., :1], ones[..., :1], zero[0, 0], 40 * ones,
                      zero, None)
    y, after = GATED_SCAN(x, "native")
    exact = torch.nn.functional.softplus(step.double())
    # exp(x) for x of 80 is 2^115: its exponent, rounded to 24 bits, leaves 17 for the fraction.
    assert_close(after[0, 0].double(), exact, rtol=6e-6, atol=0)
    assert_close(y[0, 0].double(), 40 * exact, rtol=6e-6, atol=0)


@pytest.mark.filterwarnings("error")
def test_second_derivatives_of_the_gated_scan_are_those_of_the_steps() -> None:
    found = []
    for each in ("reference", "native"):
        x = gated(call(5, dtype=torch.float32, starts=True))
        y, after = GATED_SCAN(x, each)
        first = torch.autograd.grad(y.square().sum() + after.square().sum(), list(x[:9]), create_graph=True)
        found.append(torch.autograd.grad(sum(slope.square().sum() for slope in first), list(x[:9])))
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_the_operator_of_the_gated_scan_is_well_formed() -> None:
    found = torch.library.opcheck(torch.ops.weft.native_gated_scan.default,
                                  (*gated(call(5, dtype=torch.float32, starts=True)), True),
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_a_scan_whose_form_is_named_runs_by_it() -> None:
    """So that the scan named for a run is the one that the block of Mamba takes."""
    x = gated(call(3, dtype=torch.float32))
    assert GATED_SCAN.choose(x).form.name == "native"
    assert "native: one token" in GATED_SCAN.choose(gated(call(1, dtype=torch.float32))).passed
    with forced({"selective_scan": "operator"}):
        found = GATED_SCAN.choose(x)
    assert found.form.name == "parts" and "native: the form of its scan is named" in found.passed


def test_tokens_that_are_not_taken_leave_the_state_as_it_was() -> None:
    x = gated(call(10, dtype=torch.float32))
    valid = torch.arange(10) < torch.tensor([4, 0])[:, None]
    x = x._replace(starts=torch.arange(10).expand(2, -1) == 6)
    short = GatedScanCall(*(each[:1, :4] if each.dim() == 3 else each for each in x[:8]), x.before[:1], None)
    for form in ("reference", "parts", "native"):
        with forced({"gated_scan": form}):
            after = gated_scan(x, valid)[1]
            expected = gated_scan(short)[1]
        assert_close(after[:1], expected)
        assert torch.equal(after[1], x.before[1])


@pytest.mark.parametrize(("form", "dtype"), [("operator", torch.float64), ("native", torch.float32)])
def test_states_are_kept_once_a_chunk_and_only_for_gradients(form: str, dtype: torch.dtype) -> None:
    x, kept = call(4 * CHUNK, 16, 8, dtype=dtype), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        SELECTIVE_SCAN(x, form)
    assert sum(each.numel() for each in kept) == sum(each.numel() for each in x[:6]) + 4 * x.before.numel()
    operator = {"operator": torch.ops.weft.selective_scan, "native": torch.ops.weft.native_selective_scan}[form]
    with torch.no_grad():
        assert operator(*x, False)[2].numel() == 0


@pytest.mark.parametrize("name", ["selective_scan", "native_selective_scan"])
def test_operations_by_hand(name: str) -> None:
    """For each of 2 rows, 9 tokens, 5 channels and 3 states: forward what enters and what is read, backward both
    again and three gradients, each a multiplication and an addition."""
    x = call(9)
    each = 2 * 9 * 5 * 3
    assert flops_of(getattr(torch.ops.weft, name), (*x, True), None) == 2 * 2 * each
    backward = getattr(torch.ops.weft, f"{name}_backward")
    assert flops_of(backward, (x.u, x.before, *x[:5], None, None), None) == 5 * 2 * each


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_bits(threads: int) -> None:
    alone = outcome(call(50, 200, dtype=torch.float32), "native")
    torch.set_num_threads(threads)
    try:
        together = outcome(call(50, 200, dtype=torch.float32), "native")
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize(("x", "form", "reason"), [
    (call(1, dtype=torch.float32), "step", None), (call(2, dtype=torch.float32), "native", "step: several tokens"),
    (call(2), "operator", "native: it runs only in float32"),
    (call(2, dtype=torch.float32)._replace(a=torch.ones(3, 5).double()), "operator",
     "native: its tensors are of several dtypes"),
])
def test_which_form_is_chosen(x: SelectiveScanCall, form: str, reason: str | None) -> None:
    found = SELECTIVE_SCAN.choose(x)
    assert found.form.name == form
    assert reason is None or reason in found.passed


def test_without_native_code_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "avx1024")
    found = SELECTIVE_SCAN.choose(call(2, dtype=torch.float32))
    assert found.form.name == "operator" and f"native: {library.why_not()}" in found.passed


def test_work_that_no_thread_did_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    built = loaded()
    assert isinstance(built, NativeLibrary)
    monkeypatch.setattr(built.handle, "weft_run", lambda *_: None)  # as if no thread had memory
    with pytest.raises(Incomplete, match=r"could not reserve the memory of a chunk\. Give it fewer threads"):
        SELECTIVE_SCAN(call(2, dtype=torch.float32), "native")
