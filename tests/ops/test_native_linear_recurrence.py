"""The linear recurrence in C, in every instruction set of this processor, against loops in float64; what it serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles.linear_attention import decaying_memory
from weft.ops.linear_recurrence import LINEAR_RECURRENCE, LinearRecurrenceCall, linear_recurrence
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.native_linear_recurrence import native_backward_flops, native_flops

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
KINDS = ("none", "constant", "token", "feature")
BOUND = 5e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8. The gradient of a decay
is a sum of differences, and that of a constant one adds those of all tokens, whose signs differ: it may be a hundredth
of what it is made of."""
LEAST = torch.finfo(torch.float32).tiny
"""Smaller numbers may be zero."""
SHAPES = {
    "two tokens": (2, 2, 1, 2, 3, 5), "a block": (1, 64, 2, 2, 16, 64), "past a block": (2, 70, 2, 2, 4, 8),
    "shared by nine": (1, 131, 1, 9, 5, 7), "groups": (2, 40, 2, 10, 33, 17), "wide": (1, 20, 1, 1, 100, 130),
}
"""Rows, tokens, key heads, states, features of a key and of a value."""


def call(shape: tuple[int, ...], kind: str, strength: float = 1.0) -> LinearRecurrenceCall:
    rows, steps, keys, states, e, f = shape
    make = torch.Generator().manual_seed(0)
    sizes = {"constant": (1, 1, states, 1), "token": (rows, steps, states, 1), "feature": (rows, steps, states, e)}
    decay = -strength * torch.rand(sizes[kind], generator=make) if kind in sizes else None
    tensors = (torch.randn(rows, steps, keys, e, generator=make) / e**0.5,
               torch.randn(rows, steps, keys, e, generator=make), torch.randn(rows, steps, states, f, generator=make),
               decay, torch.randn(rows, states, e, f, generator=make))
    return LinearRecurrenceCall(*(None if x is None else x.requires_grad_() for x in tensors))


def double(x: LinearRecurrenceCall) -> LinearRecurrenceCall:
    return LinearRecurrenceCall(*(None if each is None else each.detach().double().requires_grad_() for each in x))


def results(x: LinearRecurrenceCall, form: str) -> list[Tensor]:
    y, after = LINEAR_RECURRENCE(x, form)
    slopes = torch.autograd.grad(y.sin().sum() + after.sin().sum(), [each for each in x if each is not None])
    return [y.detach(), after.detach(), *slopes]


def require_near(found: list[Tensor], exact: list[Tensor]) -> None:
    for got, expected in zip(found, exact, strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max() + LEAST


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_instruction_set_agrees_with_the_steps(shape: tuple[int, ...], instructions: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, instructions)
    for kind in KINDS:
        x = call(shape, kind)
        require_near(results(x, "native"), results(double(x), "reference"))


@pytest.mark.parametrize("kind", ["token", "feature"])
def test_decays_of_any_strength_and_none_at_all(kind: str) -> None:
    """Documents that begin inside and at the end of a block, decays down to exp(-10^4), and tokens that keep all."""
    x = call((2, 150, 2, 4, 5, 7), kind, strength=1e4)
    assert x.log_decay is not None
    place = torch.arange(150)[:, None, None]
    mixed = torch.where(place % 3 == 0, x.log_decay, x.log_decay / 1e5)
    mixed = mixed.masked_fill((place == 63) | (place == 64) | (place == 100), float("-inf")).masked_fill(place > 140, 0)
    x = x._replace(log_decay=mixed.detach().requires_grad_())
    require_near(results(x, "native"), results(double(x), "reference"))


def test_it_is_the_formula_of_the_paper() -> None:
    """Against the oracle's loop, which shares nothing with any form."""
    x = call((1, 70, 1, 2, 4, 6), "feature")
    assert x.log_decay is not None
    y, _ = linear_recurrence(x.q, x.k, x.v, x.log_decay)
    q, k, v, decay = (each[0].detach().double().numpy() for each in (x.q, x.k, x.v, x.log_decay.exp()))
    for head in range(2):
        expected = decaying_memory(q[:, 0], k[:, 0], v[:, head], decay[:, head])
        np.testing.assert_allclose(y[0, :, head].detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_threads_do_not_change_the_bits() -> None:
    before, found = torch.get_num_threads(), []
    x = call((2, 70, 1, 9, 5, 7), "token")
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(results(x, "native"))
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*found, strict=True):
        assert torch.equal(one, three)


def test_second_derivatives_are_those_of_the_steps() -> None:
    x, found = call((1, 9, 1, 2, 3, 4), "feature"), []
    for form, of in (("native", x), ("reference", double(x))):
        given = [each for each in of if each is not None]
        y, after = LINEAR_RECURRENCE(of, form)
        first = torch.autograd.grad(y.square().sum() + after.square().sum(), given, create_graph=True)
        found.append([*torch.autograd.grad(sum(each.square().sum() for each in first), given)])
    require_near(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_is_well_formed(kind: str) -> None:
    arguments = tuple(call((1, 5, 1, 2, 3, 4), kind))
    result = torch.library.opcheck(torch.ops.weft.native_linear_recurrence.default, arguments,
                                   test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


def test_only_one_of_the_results_may_have_a_gradient() -> None:
    x = call((1, 70, 1, 2, 3, 4), "token")
    for taken in (0, 1):
        found = [torch.autograd.grad(LINEAR_RECURRENCE(of, form)[taken].sum(), [of.k, of.v, of.before])
                 for form, of in (("native", x), ("reference", double(x)))]
        require_near(*(list(each) for each in found))


@pytest.mark.parametrize(("changes", "reason"), [
    ({}, None),
    ({"q": torch.ones(1, 9, 4, 3)}, "several queries read one state"),
    ({"before": torch.ones(1, 2, 3, 4).double()}, "its tensors are of several dtypes"),
    ({"q": torch.ones(1, 9, 2, 3).double()}, "it runs only in float32"),
    ({"q": torch.ones(1, 1, 2, 3), "k": torch.ones(1, 1, 2, 3), "v": torch.ones(1, 1, 2, 4)}, "too few tokens"),
    ({name: torch.ones(0, 9, 2, 3) for name in "qkv"}, "there are no rows or no features"),
])
def test_what_it_is_chosen_for(changes: dict[str, Any], reason: str | None) -> None:
    x = LinearRecurrenceCall(torch.ones(1, 9, 2, 3), torch.ones(1, 9, 2, 3), torch.ones(1, 9, 2, 4), None,
                             torch.ones(1, 2, 3, 4))._replace(**changes)
    chosen = LINEAR_RECURRENCE.choose(x)
    assert (chosen.form.name == "native") == (reason is None)
    # One token is a form of its own, before the one in C.
    if reason == "too few tokens":
        assert chosen.form.name == "step"
    elif reason is not None:
        assert f"native: {reason}" in chosen.passed


def test_operations_by_hand() -> None:
    """Two rows of 7 tokens and 3 states of 5 by 4: k v^T and q S are 5 x 4 multiplications and additions each; the
    backward pass makes the state, and its gradient twice, each with one product."""
    q, v = torch.ones(2, 7, 1, 5), torch.ones(2, 7, 3, 4)
    assert native_flops(q, q, v) == 2 * 7 * 3 * 2 * (2 * 5 * 4)
    assert native_backward_flops(v, v, q, q, v) == 3 * native_flops(q, q, v)
