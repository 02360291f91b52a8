"""Dropout: how often, how large what stays is, which gradient; torch's own beside it."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from weft.ops.dropout import LOTS, RARE, Dropout, dropout


@pytest.mark.parametrize("p", [RARE, 0.1, 0.3, 0.5, 0.97, 1 - RARE])
def test_the_share_dropped_is_p(p: float) -> None:
    count = 1_000_003  # the last lot of a number is left over
    torch.manual_seed(0)
    share = 1 - dropout(torch.ones(count), p).count_nonzero().item() / count
    assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / count) + 1 / (2 * LOTS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_stays_is_scaled_so_that_the_mean_remains(dtype: torch.dtype) -> None:
    x = torch.randn(7, 11, 13, dtype=dtype)
    y = dropout(x, 0.3)
    stays = y != 0
    dropped = round(0.3 * LOTS)
    wanted = (x.to(torch.promote_types(dtype, torch.float32)) * (LOTS / (LOTS - dropped))).to(dtype)
    assert 0.5 < stays.double().mean() < 0.9 and y.dtype == dtype
    assert torch.equal(y[stays], wanted[stays]), "rounded once"
    assert LOTS / (LOTS - dropped) == pytest.approx(1 / 0.7, rel=2e-5)


def test_entries_are_independent_of_their_neighbours_and_of_the_call_before() -> None:
    torch.manual_seed(1)
    first, second = ((dropout(torch.ones(1 << 20), 0.5) != 0).double() - 0.5 for _ in range(2))
    # Four lots come from one number: lags one to four; correlations of independent ones scatter by 2^-10.
    for lag in range(1, 9):
        assert abs((first[lag:] * first[:-lag]).mean() / 0.25) < 5 / 1024
    assert abs((first * second).mean() / 0.25) < 5 / 1024


def test_the_seed_decides() -> None:
    x = torch.randn(5, 3)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(dropout(x, 0.5))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_first_and_second_derivatives_are_those_of_the_mask() -> None:
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

    def seeded(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(2)
        return dropout(x, 0.4) ** 2

    assert torch.autograd.gradcheck(seeded, x) and torch.autograd.gradgradcheck(seeded, x)
    y = dropout(x, 0.4)
    gradient, = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(gradient * x, y, rtol=1e-15, atol=0), "the same mask both ways"


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3, 5)])
def test_any_shape_and_any_strides(shape: tuple[int, ...]) -> None:
    assert dropout(torch.ones(shape), 0.5).shape == shape
    x = torch.randn(6, 4).t()
    y = dropout(x, 0.5)
    assert torch.equal(y[y != 0], (2 * x)[y != 0])


def test_only_training_drops_and_never_drops_nothing() -> None:
    x = torch.ones(1000)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x
    assert (Dropout(0.5)(x) == 0).any()
    assert not dropout(x, 1.0).any(), "as torch has it"
    torch.manual_seed(5)
    rare = dropout(x, RARE / 2)
    torch.manual_seed(5)
    assert torch.equal(rare, F.dropout(x, RARE / 2)), "too rare for lots: torch's own"


def test_compiled_it_is_torchs() -> None:
    compiled = torch.compile(dropout, backend="aot_eager", fullgraph=True)
    x = torch.ones(4000, requires_grad=True)
    y = compiled(x, 0.25)
    assert 0.6 < (y != 0).double().mean() < 0.9
    assert torch.equal(y[y != 0].unique(), torch.tensor([1 / 0.75]))
