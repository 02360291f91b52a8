"""The delta rule: against a loop of the formula in NumPy, derivatives, decays that forget at once, what is kept, and
what it costs."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from operations_counted import flops_of
from weft.ops import delta_rule_chunks
from weft.ops.delta_rule import DELTA_RULE, DeltaRuleCall, delta_rule
from weft.ops.delta_rule_chunks import CHUNK, backward, forward
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded

KINDS = ("none", "constant", "token", "feature")
FORMS = tuple(form.name for form in DELTA_RULE.forms() if form.name not in ("reference", "step", "triton"))
"""Those of several tokens; the one in Triton has tests of its own."""


def call(steps: int, kind: str, *, dtype: torch.dtype = torch.float64, size: int = 3, strength: float = 1.0,
         rate: float = 1.0) -> DeltaRuleCall:
    """As of a network: keys of length 1, and what is read with them taken away at a rate of 0 to ``rate``."""
    torch.manual_seed(0)
    make = partial(torch.randn, dtype=torch.float64)
    shapes = {"constant": (1, 1, 2, 1), "token": (2, steps, 2, 1), "feature": (2, steps, 2, size)}
    decay = -strength * make(shapes[kind]).square() if kind in shapes else None
    a = torch.nn.functional.normalize(make(2, steps, 2, size), dim=-1)
    beta = rate * make(2, steps, 2, 1).sigmoid()
    tensors = (make(2, steps, 2, size), beta * a, make(2, steps, 2, 5), a, -beta * a, decay, make(2, 2, size, 5))
    return DeltaRuleCall(*(None if x is None else x.to(dtype).requires_grad_() for x in tensors))


def given(x: DeltaRuleCall) -> list[Tensor]:
    return [each for each in x if each is not None]


def double(x: DeltaRuleCall) -> DeltaRuleCall:
    return DeltaRuleCall(*(None if each is None else each.detach().double().requires_grad_() for each in x))


@pytest.mark.parametrize("form", ["reference", *FORMS])
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_follows_the_formula(kind: str, form: str) -> None:
    """S_t = (diag(exp(g_t)) + b_t a_t^T) S_{t-1} + k_t v_t^T and o_t = q_t S_t with matrices, token by token."""
    if not DELTA_RULE.can(DELTA_RULE.form(form), call(9, kind)):
        x = call(CHUNK + 9, kind, dtype=torch.float32)  # a form of float32 alone
    else:
        x = call(CHUNK + 9, kind)
    q, k, v, a, b, decay, before = (None if each is None else each.detach().double().numpy() for each in x)
    decay = np.zeros((1, 1, 1, 1)) if decay is None else decay
    decay = np.broadcast_to(decay, k.shape)
    y, after = DELTA_RULE(x, form)
    # A hundred roundings of the dtype.
    close: dict[str, Any] = {"atol": 1e-12, "rtol": 1e-12} if y.dtype == torch.float64 else {"atol": 2e-5, "rtol": 0}
    for row in range(2):
        for head in range(2):
            state = before[row, head]
            for t in range(CHUNK + 9):
                at = (row, t, head)
                state = (np.diag(np.exp(decay[at])) + np.outer(b[at], a[at])) @ state + np.outer(k[at], v[at])
                np.testing.assert_allclose(y[at].detach().numpy(), q[at] @ state, **close)
            np.testing.assert_allclose(after[row, head].detach().numpy(), state, **close)


FOREIGN = {
    "delta": ([-0.43196, 0.556446, -0.035612, 0.456523, -0.199203, -0.287366],
              [1.889739, -0.196785, -1.318244, -0.102277, -0.795799, -1.541282, -0.175235, 1.665564],
              [-0.680067, 0.368877, 0.635886]),
    "gated": ([-0.25929, 0.195564, 0.095549, 0.452865, -0.272365, -0.22387],
              [0.32579, 0.349815, -0.48984, -0.127228, 0.112357, -0.026603, -0.103997, 0.075737],
              [-0.415874, 0.091042, 0.338552]),
    "by feature": ([-0.342995, 0.360559, 0.04147, 0.34243, -0.165786, -0.202589],
                   [0.968185, 0.209177, -0.797466, 0.161432, 0.151236, -0.254061, -0.230878, 0.547184],
                   [-0.356867, -0.026015, 0.377054]),
    "any a and b": ([-0.065278, 0.157117, -0.064817, -0.034734, -0.118642, 0.13495],
                    [0.551558, 0.588381, -0.821989, -0.120753, 0.531377, 0.226046, -0.571056, 0.127029],
                    [-0.601081, 0.100631, 0.514928])}
"""Of the naive recurrences of flash-linear-attention (its DeltaNet, Gated DeltaNet, Kimi Delta Attention and diagonal
plus low rank, commit bc3b101d): the last token's outputs, the gradient of the sixth token's key under `numbers` as
weights, and the first entries of the last state."""


def numbers(*shape: int, phase: float) -> Tensor:
    """sin(phase + 1.7 n + 0.01 n^1.5), n = 0, 1, 2, ... in row-major order."""
    n = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(1.7 * n + phase + 0.01 * n ** 1.5).reshape(shape)


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_implementation_agrees(kind: str) -> None:
    steps, heads, size, values = 70, 2, 4, 3
    unit = partial(torch.nn.functional.normalize, dim=-1)
    q, k = numbers(1, steps, heads, size, phase=0.0), unit(numbers(1, steps, heads, size, phase=1.0)).requires_grad_()
    v, before = numbers(1, steps, heads, values, phase=2.0), numbers(1, heads, size, values, phase=6.0)
    beta = (numbers(1, steps, heads, 1, phase=3.0) + 1) / 2
    by_head = -(numbers(1, steps, heads, 1, phase=4.0) + 1)
    by_feature = -(numbers(1, steps, heads, size, phase=5.0) + 1) / 4
    decay = {"delta": None, "gated": by_head}.get(kind, by_feature)
    write, read, erase = beta * k, k if decay is None else k * decay.exp(), -beta * k
    if kind == "any a and b":
        write, read, erase = k, -k.detach(), beta * unit(numbers(1, steps, heads, size, phase=8.0))
    y, after = delta_rule(q / 2, write, v, read, erase, decay, before)
    slope = torch.autograd.grad((y * numbers(1, steps, heads, values, phase=7.0)).sum(), k)[0]
    # Stored to six digits; the gated recurrence there computes in float32.
    for found, stored in zip((y[0, -1], slope[0, 5], after.flatten()[:3]), FOREIGN[kind], strict=True):
        assert_close(found.detach().flatten(), torch.tensor(stored, dtype=torch.float64), rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_those_of_the_steps(kind: str) -> None:
    found = []
    for form in ("reference", "operator"):
        x = call(7, kind)
        y, after = DELTA_RULE(x, form)
        first = torch.autograd.grad(y.square().sum() + after.square().sum(), given(x), create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), given(x)))
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_are_no_more_than_a_limit_of_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three segments and a rest against the same tokens step by step."""
    monkeypatch.setattr(delta_rule_chunks, "SEGMENT", 2 * CHUNK)
    found = []
    for form in ("reference", "operator"):
        x = call(5 * CHUNK + 3, kind, strength=0.1)
        y, after = DELTA_RULE(x, form)
        found.append([y, after, *torch.autograd.grad(y.sin().sum() + after.sin().sum(), given(x))])
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_only_one_of_the_results_may_have_a_gradient(kind: str) -> None:
    for taken in (0, 1):
        found = []
        for form in ("reference", "operator"):
            x = call(CHUNK + 3, kind)
            found.append(torch.autograd.grad(DELTA_RULE(x, form)[taken].sum(), given(x), allow_unused=True))
        for expected, got in zip(*found, strict=True):
            assert_close(got, torch.zeros_like(got) if expected is None else expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_is_well_formed(kind: str) -> None:
    """Fake shapes, gradients and aliasing agree with what the operator does, as `torch.compile` relies on."""
    result = torch.library.opcheck(torch.ops.weft.delta_rule.default, tuple(call(5, kind)),
                                   test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("strength", [1.0, 40.0, 1e4])
@pytest.mark.parametrize("kind", ["token", "feature"])
@pytest.mark.parametrize("form", FORMS)
def test_decays_of_any_strength_are_exact_in_float32(form: str, kind: str, strength: float) -> None:
    """Decays of a token reach exp(-10^5): products of them from the first token on, or their inverses, would not be
    numbers, and differences of their logarithms would be wrong in the third digit. What a token reads decays too."""
    x = call(2 * CHUNK + 9, kind, dtype=torch.float32, strength=strength)
    mixed = x.log_decay
    assert mixed is not None
    g = torch.where(torch.arange(mixed.shape[1])[:, None, None] % 3 == 0, mixed, mixed / 1e4).detach()
    x = x._replace(log_decay=g.requires_grad_(), a=(x.a * g.exp()).detach().requires_grad_())
    exact = double(x)
    wide, narrow = DELTA_RULE(exact, "reference"), DELTA_RULE(x, form)
    slopes = [torch.autograd.grad(sum(each.sin().sum() for each in found), given(of))
              for found, of in ((wide, exact), (narrow, x))]
    for expected, got in zip([*wide, *slopes[0]], [*narrow, *slopes[1]], strict=True):
        assert got.isfinite().all()
        # Some hundred roundings of 2^-24, relative to the largest entry.
        assert (got.double() - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("form", FORMS)
def test_equal_keys_at_the_largest_rate_do_not_lose_digits(form: str) -> None:
    """Reflections of one key: the triangular system has entries of 2 everywhere, whose powers reach 10^18."""
    x = call(CHUNK, "none", dtype=torch.float32)
    key = x.a[:, :1].expand_as(x.a)
    x = x._replace(a=key.detach(), k=(2 * key).detach(), b=(-2 * key).detach())
    expected, got = DELTA_RULE(double(x), "reference")[0], DELTA_RULE(x, form)[0]
    # Sums of 64 numbers of alternating sign, each rounded at 2^-24.
    assert (got.double() - expected).abs().max() <= 5e-5 * expected.abs().max()


def test_a_later_document_does_not_depend_on_an_earlier_one() -> None:
    x = call(CHUNK + 20, "feature")
    starts = (torch.arange(CHUNK + 20) == 30).expand(2, -1)
    whole = delta_rule(*x, starts)
    assert x.log_decay is not None
    alone = delta_rule(*(each[:, 30:] for each in x[:6]))
    assert_close(whole[0][:, 30:], alone[0], rtol=1e-12, atol=1e-12)
    assert_close(whole[1], alone[1], rtol=1e-12, atol=1e-12)
    reached = torch.autograd.grad(whole[0][:, 30:].sum(), [x.k, x.before, x.a, x.log_decay])
    assert not reached[0][:, :30].any() and not reached[1].any() and not reached[2][:, :31].any()
    assert reached[3][:, :31].abs().max() < 1e-12  # sums of numbers near 1 that cancel


def test_tokens_that_are_not_taken_leave_the_state_as_it_was() -> None:
    for kind in ("none", "token"):
        x = call(10, kind)
        valid = torch.arange(10) < torch.tensor([4, 0])[:, None]
        after = delta_rule(*x, None, valid)[1]
        short = delta_rule(*(None if each is None else each[:1, :4] for each in x[:6]), x.before[:1])[1]
        assert_close(after[:1], short, rtol=1e-13, atol=1e-13)
        assert torch.equal(after[1], x.before[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS[:1])
def test_the_backward_pass_keeps_its_arguments_and_no_states(form: str, kind: str) -> None:
    x, kept = call(4 * CHUNK, kind, size=16, dtype=torch.float32), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        DELTA_RULE(x, form)
    assert sum(each.numel() for each in kept) <= sum(each.numel() for each in given(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 11, CHUNK, 5 * CHUNK + 7])
def test_operations_are_those_of_the_products_that_run(kind: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula for the operator, against the products and triangular systems of its two passes as PyTorch calls
    them."""
    monkeypatch.setattr(delta_rule_chunks, "SEGMENT", 2 * CHUNK)
    x = [each if each is None else each.detach() for each in call(steps, kind)]
    tensors: tuple[Any, ...] = tuple(x)
    triangular = {torch.ops.aten.linalg_solve_triangular: lambda system, right, **_: math.prod(right) * system[-1]}
    with FlopCounterMode(display=False, custom_mapping=triangular) as counter:
        y, after = forward(*tensors)
    assert counter.get_total_flops() == flops_of(torch.ops.weft.delta_rule, tensors, (y, after))
    with FlopCounterMode(display=False, custom_mapping=triangular) as counter:
        found = backward(torch.ones_like(y), torch.ones_like(after), *tensors)
    arguments = (torch.ones_like(y), torch.ones_like(after), *tensors)
    assert counter.get_total_flops() == flops_of(torch.ops.weft.delta_rule_backward, arguments, found)


def test_operations_by_hand() -> None:
    """Two whole chunks of one row: 2 (2C)^2 E of scores, 2 C^2 F and C^2 (E + F) of the system, 6 C E F and 2 C E F of
    states, and 4 C^2 F of outputs."""
    e, f, heads = 8, 5, 2
    q, v = torch.ones(1, 2 * CHUNK, heads, e), torch.ones(1, 2 * CHUNK, heads, f)
    found = flops_of(torch.ops.weft.delta_rule, (q, q, v, q, q, None, torch.ones(1, heads, e, f)), None)
    square = CHUNK * CHUNK
    assert flops_of(torch.ops.aten.linalg_solve_triangular, (torch.ones(2, 3, 3), torch.ones(2, 3, 4)), None) == 72
    states = 8 * CHUNK * e * f
    assert found == 2 * heads * (8 * square * e + 2 * square * f + square * (e + f) + states + 4 * square * f)


def test_which_form_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DELTA_RULE.choose(call(1, "none")).form.name == "step"
    assert DELTA_RULE.choose(call(2, "none")).form.name == "operator"
    single = call(2, "none", dtype=torch.float32)
    assert DELTA_RULE.choose(single).form.name == "native"
    mixed = DELTA_RULE.choose(single._replace(before=single.before.double()))
    assert "native: its tensors are of several dtypes" in mixed.passed
    large = DeltaRuleCall(*(torch.ones(1, 2, 4, 257) for _ in range(5)), None, torch.ones(1, 4, 257, 257))
    assert "native: a memory is larger than the cache" in DELTA_RULE.choose(large).passed
    monkeypatch.setattr("weft.ops.delta_rule.threads", lambda: 5)
    assert "native: it has fewer heads than threads" in DELTA_RULE.choose(single).passed


@pytest.mark.parametrize("kind", KINDS)
def test_native_code_computes_what_the_steps_do_on_every_instruction_set(kind: str,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of the backward pass are 16 tokens, so this has five; widths beyond a block of lanes, and short ones."""
    library = loaded()
    assert isinstance(library, NativeLibrary), f"the tests need a C compiler: {library.detail}"
    for size in (3, 17):
        x = call(CHUNK + 5, kind, dtype=torch.float32, size=size)
        x = x._replace(v=torch.randn(2, CHUNK + 5, 2, 70).requires_grad_(),
                       before=torch.randn(2, 2, size, 70).requires_grad_())
        exact = double(x)
        wanted = DELTA_RULE(exact, "reference")
        slopes = torch.autograd.grad(sum(each.sin().sum() for each in wanted), given(exact))
        for name in library.sets:
            monkeypatch.setenv(VARIABLE, name)
            found = DELTA_RULE(x, "native")
            own = torch.autograd.grad(sum(each.sin().sum() for each in found), given(x))
            for expected, got in zip([*wanted, *slopes], [*found, *own], strict=True):
                # Some hundred roundings of 2^-24, relative to the largest entry.
                assert (got.double() - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_native_code_can_be_differentiated_twice() -> None:
    found = []
    for form, dtype in (("reference", torch.float64), ("native", torch.float32)):
        x = call(7, "feature", dtype=dtype)
        y, after = DELTA_RULE(x, form)
        first = torch.autograd.grad(y.square().sum() + after.square().sum(), given(x), create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), given(x)))
    for expected, got in zip(*found, strict=True):
        assert (got.double() - expected).abs().max() <= 2e-5 * expected.abs().max()  # as above


@pytest.mark.parametrize("kind", KINDS)
def test_the_native_operator_is_well_formed(kind: str) -> None:
    result = torch.library.opcheck(torch.ops.weft.native_delta_rule.default,
                                   tuple(call(5, kind, dtype=torch.float32)),
                                   test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


def test_operations_of_native_code_by_hand() -> None:
    """Two products with the memory and two outer ones for a token of a head, of 2 E F each; backward the memory twice
    again, and two outer products and seven with it or its gradient."""
    x = tuple(each if each is None else each.detach() for each in call(10, "token", dtype=torch.float32))
    each = 2 * 10 * 2 * 2 * 3 * 5
    assert flops_of(torch.ops.weft.native_delta_rule, x, None) == 4 * each
    assert flops_of(torch.ops.weft.native_delta_rule_backward, (x[2], x[6], *x), None) == (2 * 3 + 9) * each


def test_memory_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    built = loaded()
    assert isinstance(built, NativeLibrary)
    monkeypatch.setattr(built.handle, "weft_run", lambda *_: None)  # as if no thread had memory
    with pytest.raises(MemoryError, match=r"the delta rule in C could not reserve the memory of a head\. Give it fewer "
                       r"threads or shorter sequences"):
        DELTA_RULE(call(5, "none", dtype=torch.float32), "native")
