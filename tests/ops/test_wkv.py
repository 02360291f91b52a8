"""RWKV-4's decaying mean: large exponents, states, second derivatives, and the form in C on odd widths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oracles import rwkv_time as oracle
from weft.ops.forms import forced
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.wkv import WKV, WKVCall, empty_state, wkv
from weft.ops.wkv_chunks import EMPTY

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
FORMS = pytest.mark.parametrize("form", ["reference", "operator", "native"])


def made(steps: int, width: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    k, v = torch.randn(2, steps, width, dtype=dtype), torch.randn(2, steps, width, dtype=dtype)
    return 2 * k, v, -torch.rand(width, dtype=dtype), torch.randn(width, dtype=dtype)


@pytest.mark.parametrize("form", ["reference", "operator"])
def test_a_row_longer_than_chunks_is_the_sum_over_its_tokens(form: str) -> None:
    k, v, decay, bonus = made(71)
    with forced({"wkv": form}):
        y, after = wkv(k, v, decay, bonus)
    wanted = [oracle.four(*(x.numpy() for x in (k[row], v[row], decay, bonus))) for row in range(2)]
    assert_close(y, torch.tensor(np.array(wanted)), rtol=1e-11, atol=1e-12)
    exponents = torch.arange(70, -1, -1)[:, None] * decay + k
    assert_close(after[:, 1] * after[:, 2].exp(), exponents.exp().sum(1))
    assert_close(after[:, 0] * after[:, 2].exp(), (exponents.exp() * v).sum(1))
    assert_close(after[:, 2], exponents.max(1).values)


@FORMS
def test_exponents_that_overflow_alone_give_finite_means(form: str) -> None:
    """e^300 is infinite in float32: the largest key so far gets all the weight."""
    k = torch.tensor([0.0, 300.0, 0.0, -300.0])[None, :, None]
    v = torch.tensor([1.0, 2.0, 3.0, 4.0])[None, :, None].requires_grad_()
    with forced({"wkv": form}):
        y, _ = wkv(k.requires_grad_(), v, torch.tensor([-0.5]), torch.tensor([0.0]))
    assert_close(y.flatten(), torch.tensor([1.0, 2.0, 2.0, 2.0]))
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(y.sum(), [k, v]))


@FORMS
def test_the_largest_key_may_be_chunks_ago(form: str) -> None:
    k = torch.zeros(1, 200, 3).index_fill(1, torch.tensor([2]), 500.0)
    v = torch.arange(200.0)[None, :, None].expand(1, 200, 3)
    with forced({"wkv": form}):
        y, after = wkv(k, v, torch.full((3,), -0.125), torch.zeros(3))
    assert_close(y[:, 2:], torch.full((1, 198, 3), 2.0))
    assert_close(after[:, 2], torch.full((1, 3), 500 - 197 * 0.125))


@FORMS
def test_a_strong_decay_leaves_the_token_before_alone(form: str) -> None:
    k, v, _, bonus = made(40, dtype=torch.float32)
    with forced({"wkv": form}):
        y, _ = wkv(k, v, torch.full((5,), -1e4), bonus - 1e4)
    assert_close(y[:, 0], v[:, 0])
    assert_close(y[:, 1:], v[:, :-1])


@FORMS
def test_nan_in_a_decay_stays_visible(form: str) -> None:
    k, v, decay, bonus = made(3, dtype=torch.float32)
    with forced({"wkv": form}):
        y, _ = wkv(k, v, decay.index_fill(0, torch.tensor([1]), float("nan")), bonus)
    assert y[:, 2].isnan().any(0).tolist() == [False, True, False, False, False]


def test_the_state_passes_the_gradient_on() -> None:
    """m is a constant to gradients, and the sums' gradients are then those of the whole row, across any cut."""
    k, v, decay, bonus = (x.requires_grad_() for x in made(50))
    whole, _ = wkv(k, v, decay, bonus)
    first, state = wkv(k[:, :37], v[:, :37], decay, bonus)
    second, _ = wkv(k[:, 37:], v[:, 37:], decay, bonus, state)
    weight = torch.randn_like(whole)
    cut = torch.autograd.grad((torch.cat([first, second], 1) * weight).sum(), [k, v, decay, bonus])
    for found, wanted in zip(cut, torch.autograd.grad((whole * weight).sum(), [k, v, decay, bonus]), strict=True):
        assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("form", ["operator", "native"])
def test_the_gradient_has_a_gradient(form: str) -> None:
    dtype = torch.float64 if form == "operator" else torch.float32
    found = []
    for each in (form, "reference"):
        k, v, decay, bonus = (x.requires_grad_() for x in made(9, dtype=dtype))
        with forced({"wkv": each}):
            y, _ = wkv(k, v, decay, bonus)
        slope, = torch.autograd.grad(y.square().sum(), k, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [k, v, decay, bonus]))
    for own, wanted in zip(*found, strict=True):
        assert_close(own, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize("width", [1, 16, 67, 131])
def test_the_form_in_c_serves_every_width_in_every_instruction_set(width: int, instructions: str,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths below, at and past the channels of a piece of work; 131 tokens are five spans of the backward pass."""
    monkeypatch.setenv(VARIABLE, instructions)
    k, v, decay, bonus = made(131, width, torch.float32)
    valid = torch.arange(131) < torch.tensor([[131], [90]])
    starts = (torch.arange(131) % 50 == 33) & valid
    outcomes = []
    for form in ("native", "reference"):
        inputs = [x.clone().requires_grad_() for x in (k, v, decay, bonus)]
        y, after = WKV(WKVCall(*inputs, empty_state(k), starts, valid), form)
        outcomes.append([y, after, *torch.autograd.grad((y * v).sum() + after[:, 0].sum(), inputs)])
    for own, wanted in zip(*outcomes, strict=True):
        assert_close(own, wanted, rtol=2e-4, atol=2e-4)


def test_an_empty_state_is_empty_for_every_exponent() -> None:
    assert (EMPTY - torch.tensor([-1e30, 0.0, 1e30])).exp().tolist() == [0.0, 0.0, 0.0]
