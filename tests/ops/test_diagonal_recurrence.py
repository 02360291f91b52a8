"""The diagonal recurrence: its second derivatives, sums over long rows, what it keeps, and what it costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from operations_counted import flops_of
from weft.ops.diagonal_recurrence import DIAGONAL_RECURRENCE, DiagonalRecurrenceCall, diagonal_recurrence

FAST = ("operator", "native")


def call(steps: int, width: int = 3, dtype: torch.dtype = torch.float64) -> DiagonalRecurrenceCall:
    torch.manual_seed(0)
    x, decay, before = torch.randn(2, steps, width), -torch.rand(2, steps, width), torch.randn(2, width)
    return DiagonalRecurrenceCall(*(each.to(dtype).requires_grad_() for each in (x, decay, before)))


def test_second_derivatives_are_those_of_the_steps() -> None:
    found = []
    for form in ("reference", "operator"):
        given = call(7)
        first = torch.autograd.grad(DIAGONAL_RECURRENCE(given, form).square().sum(), given, create_graph=True)
        found.append(torch.autograd.grad(sum((each.square().sum() for each in first), torch.zeros(())), given))
    for expected, got in zip(*found, strict=True):
        assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FAST)
def test_long_rows_are_as_exact_as_step_by_step_in_float64(form: str) -> None:
    """5,003 tokens of slow decay, in float32: each state is a sum of a thousand terms, and so are gradients."""
    given = call(5003, 33, torch.float32)
    given = DiagonalRecurrenceCall(given.x, (given.log_decay.detach() * 1e-3).requires_grad_(), given.before)
    exact = DiagonalRecurrenceCall(*(each.detach().double().requires_grad_() for each in given))
    found, expected = DIAGONAL_RECURRENCE(given, form), DIAGONAL_RECURRENCE(exact, "reference")
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max()))
    for got, right in zip(torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), exact),
                          strict=True):
        assert_close(got.double(), right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("form", FAST)
def test_threads_and_strides_change_no_bit(form: str) -> None:
    given = call(130, 70, torch.float32)
    x, decay = (each.detach().transpose(1, 2).contiguous().transpose(1, 2) for each in given[:2])
    strided = DiagonalRecurrenceCall(x, decay, given.before.detach())
    expected, threads = DIAGONAL_RECURRENCE(given, form), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(DIAGONAL_RECURRENCE(strided, form), expected)
    finally:
        torch.set_num_threads(threads)


def test_the_state_skips_tokens_that_do_not_count_and_begins_anew() -> None:
    x, decay = torch.randn(1, 6, 2), -torch.rand(1, 6, 2)
    starts, valid = torch.tensor([[False, False, True, False, False, False]]), torch.tensor([[True] * 4 + [False] * 2])
    states, after = diagonal_recurrence(x, decay, torch.randn(1, 2), starts, valid)
    alone, expected = diagonal_recurrence(x[:, 2:4], decay[:, 2:4])
    assert_close(states[:, 2:4], alone)
    assert_close(after, expected)


def test_operations_are_counted_by_hand() -> None:
    """One product and one sum for each number forward; twice as many backward."""
    given = call(9, 4)
    h = given.x.detach()
    forward = flops_of(torch.ops.weft.diagonal_recurrence, (*given, False), h)
    backward = flops_of(torch.ops.weft.diagonal_recurrence_backward, (h, given.log_decay, given.before, h, False),
                        (h, h, given.before))
    assert (forward, backward) == (2 * 2 * 9 * 4, 4 * 2 * 9 * 4)


def test_a_state_keeps_no_chunk_alive() -> None:
    after: Tensor = diagonal_recurrence(torch.randn(1, 100, 4), -torch.rand(1, 100, 4))[1]
    assert after.untyped_storage().nbytes() == 4 * 4
