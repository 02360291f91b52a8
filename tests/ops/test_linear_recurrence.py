"""The recurrence of linear attention: derivatives, decays that forget at once, what is kept, and what it costs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from operations_counted import flops_of
from weft.ops import linear_recurrence_chunks
from weft.ops.linear_recurrence import LINEAR_RECURRENCE, LinearRecurrenceCall, linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK, backward, forward

KINDS = ("none", "constant", "token", "feature")


def call(steps: int, kind: str, *, dtype: torch.dtype = torch.float64, size: int = 3,
         strength: float = 1.0) -> LinearRecurrenceCall:
    torch.manual_seed(0)
    make = partial(torch.randn, dtype=torch.float64)
    shapes = {"constant": (1, 1, 2, 1), "token": (2, steps, 2, 1), "feature": (2, steps, 2, size)}
    decay = -strength * make(shapes[kind]).square() if kind in shapes else None
    tensors = (make(2, steps, 4, size), make(2, steps, 2, size), make(2, steps, 2, 5), decay, make(2, 2, size, 5))
    return LinearRecurrenceCall(*(None if x is None else x.to(dtype).requires_grad_() for x in tensors))


def given(x: LinearRecurrenceCall) -> list[Tensor]:
    return [each for each in x if each is not None]


def double(x: LinearRecurrenceCall) -> LinearRecurrenceCall:
    return LinearRecurrenceCall(*(None if each is None else each.detach().double().requires_grad_() for each in x))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_those_of_the_steps(kind: str) -> None:
    found = []
    for form in ("reference", "operator"):
        x = call(7, kind)
        y, after = LINEAR_RECURRENCE(x, form)
        first = torch.autograd.grad(y.square().sum() + after.square().sum(), given(x), create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), given(x)))
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_segments_are_no_more_than_a_limit_of_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three segments and a rest against the same tokens step by step."""
    monkeypatch.setattr(linear_recurrence_chunks, "SEGMENT", 2 * CHUNK)
    found = []
    for form in ("reference", "operator"):
        x = call(5 * CHUNK + 3, kind, strength=0.1)
        y, after = LINEAR_RECURRENCE(x, form)
        found.append([y, after, *torch.autograd.grad(y.sin().sum() + after.sin().sum(), given(x))])
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_only_one_of_the_results_may_have_a_gradient(kind: str) -> None:
    for taken in (0, 1):
        found = []
        for form in ("reference", "operator"):
            x = call(CHUNK + 3, kind)
            found.append(torch.autograd.grad(LINEAR_RECURRENCE(x, form)[taken].sum(), given(x), allow_unused=True))
        for expected, got in zip(*found, strict=True):
            assert_close(got, torch.zeros_like(got) if expected is None else expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_is_well_formed(kind: str) -> None:
    """Fake shapes, gradients and aliasing agree with what the operator does, as `torch.compile` relies on."""
    result = torch.library.opcheck(torch.ops.weft.linear_recurrence.default, tuple(call(5, kind)),
                                   test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("strength", [1.0, 40.0, 1e4])
@pytest.mark.parametrize("kind", ["token", "feature"])
def test_decays_of_any_strength_are_exact_in_float32(kind: str, strength: float) -> None:
    """Decays of a token reach exp(-10^5): products of them from the first token on, or their inverses, would not be
    numbers, and differences of their logarithms would be wrong in the third digit."""
    x = call(2 * CHUNK + 9, kind, dtype=torch.float32, strength=strength)
    mixed = x.log_decay
    assert mixed is not None
    x = x._replace(log_decay=torch.where(torch.arange(mixed.shape[1])[:, None, None] % 3 == 0, mixed, mixed / 1e4)
                   .detach().requires_grad_())
    exact = double(x)
    wide, narrow = LINEAR_RECURRENCE(exact, "reference"), LINEAR_RECURRENCE(x, "operator")
    slopes = [torch.autograd.grad(sum(each.sin().sum() for each in found), given(of))
              for found, of in ((wide, exact), (narrow, x))]
    for expected, got in zip([*wide, *slopes[0]], [*narrow, *slopes[1]], strict=True):
        assert got.isfinite().all()
        # Some hundred roundings of 2^-24, relative to the largest entry.
        assert (got.double() - expected).abs().max() <= 2e-5 * expected.abs().max()


@pytest.mark.parametrize("form", ["operator", "native"])
@pytest.mark.parametrize("kind", ["constant", "token", "feature"])
def test_the_gradient_of_a_strong_decay_is_as_exact_as_that_of_a_weak_one(kind: str, form: str) -> None:
    """Of each head by itself, one of which keeps exp(-9) of its state from token to token and one nearly all of it:
    what is left of the first is a thousandth of the products of queries and keys that the decay does not touch."""
    x = call(2048 + 9, kind, dtype=torch.float32)
    assert x.log_decay is not None
    x = x._replace(q=x.q[:, :, :2].detach() if form == "native" else x.q)  # which has one query for each state
    heads = torch.tensor([-9.0, -0.02])[:, None]
    x = x._replace(log_decay=(heads + 0 * x.log_decay.detach()).requires_grad_())
    exact = double(x)
    slopes = [torch.autograd.grad(sum(each.sin().sum() for each in LINEAR_RECURRENCE(of, which)), given(of)[3])[0]
              for of, which in ((exact, "reference"), (x, form))]
    expected, got = (each.double().sum((0, 1)) for each in slopes)
    # Sums of 4,000 tokens with both signs, each of a hundred roundings of 2^-24 at most: 1e-5 of the terms' own size,
    # which for these numbers is the sum's times some ten. In C a token's slope is that of the token after it and a
    # difference, over blocks of 64 tokens, in float64: a rounding to float32 would be in up to 64 slopes.
    assert ((got - expected).abs().amax(1) <= 1e-4 * expected.abs().amax(1)).all(), (got, expected)


def test_a_later_document_does_not_depend_on_an_earlier_one() -> None:
    x = call(CHUNK + 20, "feature")
    starts = (torch.arange(CHUNK + 20) == 30).expand(2, -1)
    whole = linear_recurrence(x.q, x.k, x.v, x.log_decay, x.before, starts)
    assert x.log_decay is not None
    alone = linear_recurrence(x.q[:, 30:], x.k[:, 30:], x.v[:, 30:], x.log_decay[:, 30:])
    assert_close(whole[0][:, 30:], alone[0], rtol=1e-12, atol=1e-12)
    assert_close(whole[1], alone[1], rtol=1e-12, atol=1e-12)
    reached = torch.autograd.grad(whole[0][:, 30:].sum(), [x.k, x.before, x.log_decay])
    assert not reached[0][:, :30].any() and not reached[1].any()
    assert reached[2][:, :31].abs().max() < 1e-12  # sums of numbers near 1 that cancel


def test_tokens_that_are_not_taken_leave_the_state_as_it_was() -> None:
    x = call(10, "token")
    count = torch.tensor([4, 0])
    valid = torch.arange(10) < count[:, None]
    after = linear_recurrence(x.q, x.k, x.v, x.log_decay, x.before, None, valid)[1]
    assert x.log_decay is not None
    short = linear_recurrence(x.q[:1, :4], x.k[:1, :4], x.v[:1, :4], x.log_decay[:1, :4], x.before[:1])[1]
    assert_close(after[:1], short, rtol=1e-13, atol=1e-13)
    assert torch.equal(after[1], x.before[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_keeps_its_arguments_and_no_states(kind: str) -> None:
    x, kept = call(4 * CHUNK, kind, size=16), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        LINEAR_RECURRENCE(x)
    assert sum(each.numel() for each in kept) <= sum(each.numel() for each in given(x))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 11, CHUNK, 5 * CHUNK + 7])
def test_operations_are_those_of_the_products_that_run(kind: str, steps: int, shared: bool,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula for the operator, against the matrix products of its two passes as PyTorch counts them."""
    monkeypatch.setattr(linear_recurrence_chunks, "SEGMENT", 2 * CHUNK)
    x = [each if each is None else each.detach() for each in call(steps, kind)]
    if shared:
        x[0], x[1] = x[0][:, :, :1], x[1][:, :, :1]
    tensors: tuple[Any, ...] = tuple(x)
    with FlopCounterMode(display=False) as counter:
        y, after = forward(*tensors)
    assert counter.get_total_flops() == flops_of(torch.ops.weft.linear_recurrence, tensors, (y, after))
    with FlopCounterMode(display=False) as counter:
        found = backward(torch.ones_like(y), torch.ones_like(after), *tensors)
    arguments = (torch.ones_like(y), torch.ones_like(after), *tensors)
    assert counter.get_total_flops() == flops_of(torch.ops.weft.linear_recurrence_backward, arguments, found)


def test_operations_by_hand() -> None:
    """Two whole chunks, one row: states and what queries read of them, 2 C E F each, and scores, C C (E + F)."""
    e, f, heads, group = 8, 5, 2, 3
    q, k, v = torch.ones(1, 2 * CHUNK, heads * group, e), torch.ones(1, 2 * CHUNK, heads, e), torch.ones(
        1, 2 * CHUNK, heads, f)
    found = flops_of(torch.ops.weft.linear_recurrence, (q, k, v, None, torch.ones(1, heads, e, f)), None)
    states = 2 * CHUNK * e * f * (1 + group)
    assert found == 2 * heads * (states + 2 * group * CHUNK * CHUNK * (e + f))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["step", "operator"])
def test_shared_queries_and_keys_are_those_of_every_state(form: str, kind: str) -> None:
    """Six states, of which three share a key head, and its query head too, against the same ones repeated."""
    steps = 1 if form == "step" else CHUNK + 9
    x = call(steps, kind)
    v, before = torch.randn(2, steps, 6, 5, dtype=torch.float64), torch.randn(2, 6, 3, 5, dtype=torch.float64)
    decay = None if x.log_decay is None else x.log_decay.repeat(1, 1, 3, 1)
    q, k = x.q[:, :, :2], x.k
    for few, queries in ((q, q.repeat_interleave(3, 2)), (x.q.repeat(1, 1, 3, 1), x.q.repeat(1, 1, 3, 1))):
        found = LINEAR_RECURRENCE(LinearRecurrenceCall(few, k, v, decay, before), form)
        repeated = k.repeat_interleave(3, 2)
        wanted = LINEAR_RECURRENCE(LinearRecurrenceCall(queries, repeated, v, decay, before), "reference")
        slopes = [torch.autograd.grad(y.sin().sum() + after.sin().sum(), [x.q, x.k]) for y, after in (found, wanted)]
        for got, expected in zip([*found, *slopes[0]], [*wanted, *slopes[1]], strict=True):
            assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_a_form_for_one_token_serves_one() -> None:
    assert LINEAR_RECURRENCE.choose(call(1, "none")).form.name == "step"
    assert LINEAR_RECURRENCE.choose(call(2, "none")).form.name == "operator"
