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

from weft.analysis.formulas import flops_of
from weft.ops import delta_rule_chunks
from weft.ops.delta_rule import DELTA_RULE, DeltaRuleCall, delta_rule
from weft.ops.delta_rule_chunks import CHUNK, backward, forward

KINDS = ("none", "constant", "token", "feature")
FORMS = tuple(form.name for form in DELTA_RULE.forms() if form.name not in ("reference", "step"))


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


def test_a_form_for_one_token_serves_one() -> None:
    assert DELTA_RULE.choose(call(1, "none")).form.name == "step"
    assert DELTA_RULE.choose(call(2, "none")).form.name == "operator"
