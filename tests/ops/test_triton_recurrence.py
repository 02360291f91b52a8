"""The linear recurrence in Triton: interpreted where there is no GPU, at real lengths on one; what it serves and costs.

`test_forms` holds it to the reference on the examples of the operation, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fast_interpreter  # noqa: F401
from operations_counted import flops_of
from weft.core.errors import UnsupportedError
from weft.ops.linear_recurrence import LINEAR_RECURRENCE, LinearRecurrenceCall
from weft.ops.triton import library
from weft.ops.triton.linear_recurrence import CHUNK

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
DEVICE = "cpu" if library.interpreted() else "cuda"
BOUND = 5e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8. The gradient of a decay
is a sum of differences."""
SHAPES = {"wider than a tile": (1, CHUNK + 1, 1, 1, 1, 70, 66)} if DEVICE == "cpu" else {
    "mamba-2": (2, 4096, 1, 1, 24, 128, 64), "groups": (1, 1000, 2, 2, 8, 128, 64), "shared states":
    (2, 300, 8, 2, 4, 96, 130), "retention": (1, 4096, 4, 4, 4, 128, 256)}
"""Rows, tokens, query heads, key heads, states, features of a key and of a value."""


def call(shape: tuple[int, ...], kind: str, strength: float = 1.0) -> LinearRecurrenceCall:
    rows, steps, queries, keys, states, e, f = shape
    make = torch.Generator().manual_seed(0)
    sizes = {"constant": (1, 1, states, 1), "token": (rows, steps, states, 1), "feature": (rows, steps, states, e)}
    decay = -strength * torch.rand(sizes[kind], generator=make) if kind in sizes else None
    tensors = (torch.randn(rows, steps, queries, e, generator=make) / e**0.5,
               torch.randn(rows, steps, keys, e, generator=make) / e**0.5,
               torch.randn(rows, steps, states, f, generator=make), decay,
               torch.randn(rows, states, e, f, generator=make))
    return LinearRecurrenceCall(*(None if x is None else x.to(DEVICE).requires_grad_() for x in tensors))


def double(x: LinearRecurrenceCall) -> LinearRecurrenceCall:
    return LinearRecurrenceCall(*(None if each is None else each.detach().double().requires_grad_() for each in x))


def results(x: LinearRecurrenceCall, form: str) -> list[Tensor]:
    y, after = LINEAR_RECURRENCE(x, form)
    slopes = torch.autograd.grad(y.sin().sum() + after.sin().sum(), [each for each in x if each is not None])
    return [y.detach(), after.detach(), *slopes]


def require_near(found: list[Tensor], exact: list[Tensor]) -> None:
    for got, expected in zip(found, exact, strict=True):
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= BOUND * expected.abs().max()


@pytest.mark.parametrize("kind", ["token"] if DEVICE == "cpu" else ["none", "constant", "token"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_it_equals_the_steps(shape: tuple[int, ...], kind: str) -> None:
    x = call(shape, kind, strength=0.1)
    require_near(results(x, "triton"), results(double(x), "reference"))


def test_decays_of_any_strength_and_none_at_all() -> None:
    """Documents that begin within a chunk and beside its border, decays down to exp(-10^4), tokens that keep all."""
    x = call((1, CHUNK + 4, 1, 1, 1, 3, 4), "token", strength=1e4)
    assert x.log_decay is not None
    place = torch.arange(CHUNK + 4, device=DEVICE)[:, None, None]
    mixed = torch.where(place % 3 == 0, x.log_decay, x.log_decay / 1e5)
    mixed = mixed.masked_fill((place == 20) | (place == 63) | (place == 64), float("-inf")).masked_fill(place == 66, 0)
    x = x._replace(log_decay=mixed.detach().requires_grad_())
    require_near(results(x, "triton"), results(double(x), "reference"))


@pytest.mark.parametrize("shape", [(1, CHUNK + 3, 2, 1, 2, 18, 3)] if DEVICE == "cpu" else SHAPES.values())
def test_queries_and_keys_in_bfloat16_give_what_the_same_numbers_give_in_float32(shape: tuple[int, ...]) -> None:
    """Results in float32, to its precision; their gradients arrive in bfloat16."""
    x = call(shape, "token", strength=0.1)
    narrow = x._replace(q=x.q.detach().bfloat16().requires_grad_(), k=x.k.detach().bfloat16().requires_grad_())
    found, exact = results(narrow, "triton"), results(double(narrow), "reference")
    assert [each.dtype for each in found] == [torch.float32] * 2 + [torch.bfloat16] * 2 + [torch.float32] * 3
    require_near(found[:2] + found[4:], exact[:2] + exact[4:])
    for got, expected in zip(found[2:4], exact[2:4], strict=True):
        assert (got.double() - expected).abs().max() <= 2**-8 * expected.abs().max()  # rounded once


def test_every_form_on_a_gpu_takes_queries_and_keys_in_bfloat16() -> None:
    """As `linear_recurrence` gives them where the device is one; others widen them."""
    x = call((1, 1, 2, 1, 2, 3, 4), "token")
    narrow = x._replace(q=x.q.detach().bfloat16(), k=x.k.detach().bfloat16())
    for form in ("reference", "step", "operator"):
        assert LINEAR_RECURRENCE(narrow, form)[0].dtype == torch.float32


def test_the_operator_is_well_formed() -> None:
    result = torch.library.opcheck(torch.ops.weft.triton_linear_recurrence.default,
                                   tuple(call((1, 2, 2, 1, 2, 3, 4), "token")),
                                   test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(result.values()) == {"SUCCESS"}


def test_it_is_counted_as_the_products_of_its_chunks() -> None:
    x = call((1, 9, 1, 1, 2, 3, 4), "token")
    for mine, plain in ((torch.ops.weft.triton_linear_recurrence, torch.ops.weft.linear_recurrence),):
        assert flops_of(mine, tuple(x), None) == flops_of(plain, tuple(x), None) > 0


@pytest.mark.parametrize(("changes", "reason"), [
    ({"log_decay": torch.zeros(1, 9, 2, 3)}, "its decays differ between features"),
    ({"before": torch.ones(1, 2, 3, 4).double()}, "values, decays or states are not in float32"),
    ({"k": torch.ones(1, 9, 2, 3).bfloat16()}, "queries and keys are of two dtypes"),
    ({name: torch.ones(0, 9, 2, 3) for name in "qkv"}, "there are no rows or no features"),
])
def test_why_a_call_is_not_served(changes: dict[str, Any], reason: str) -> None:
    plain = LinearRecurrenceCall(torch.ones(1, 9, 2, 3), torch.ones(1, 9, 2, 3), torch.ones(1, 9, 2, 4), None,
                                 torch.ones(1, 2, 3, 4))
    moved = [None if each is None else each.to(DEVICE) for each in plain._replace(**changes)]
    with pytest.raises(UnsupportedError, match=f"kernels.linear_recurrence: the form 'triton' .* this call: {reason}"):
        LINEAR_RECURRENCE(LinearRecurrenceCall(*moved), "triton")
