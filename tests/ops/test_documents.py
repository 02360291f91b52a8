"""Packed documents as rows and back, and the convolution that hears none but its own document."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from weft.ops.fft_convolution import FFT_CONVOLUTION, ConvolutionCall
from weft.ops.forms import REFERENCE
from weft.ops.packed_convolution import SHORTEST, groups_of, packed_convolution

STEPS = 4 * SHORTEST


def documents() -> tuple[Tensor, Tensor]:
    """Documents of 1 to 64 tokens, a row with padding, one without tokens and one of one document."""
    begins = torch.zeros(4, STEPS, dtype=torch.bool)
    begins[0, [0, 1, 2, 40]] = True
    begins[1, [3, 20, 50]] = True  # the last lies in the padding
    return begins, torch.tensor([STEPS, 30, 0, STEPS])


def direct_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    return FFT_CONVOLUTION.form(REFERENCE).run(ConvolutionCall(u, kernel))


def by_hand(u: Tensor, kernel: Tensor) -> Tensor:
    starts, count = documents()
    rows = []
    for b in range(len(u)):
        ends = [0, *[t for t in range(1, int(count[b])) if starts[b, t]], int(count[b])]
        parts = [direct_convolution(u[b:b + 1, i:j].transpose(1, 2), kernel[:, : j - i]).transpose(1, 2)
                 for i, j in pairwise(ends) if j > i]
        rows.append(torch.cat([*parts, u.new_zeros(1, STEPS - int(count[b]), u.shape[2])], 1))
    return torch.cat(rows)


@pytest.fixture
def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
            for shape in ((4, STEPS, 2), (2, STEPS))]


def test_every_document_is_convolved_alone_to_the_second_derivative(inputs: list[Tensor]) -> None:
    def derivatives(y: Tensor) -> list[Tensor]:
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        once = torch.autograd.grad(y.square().sum(), inputs, retain_graph=True)
        return [y, *first, *once, *torch.autograd.grad(sum(g.square().sum() for g in first), inputs)]

    found, wanted = derivatives(packed_convolution(*inputs, *documents())), derivatives(by_hand(*inputs))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-9)


def test_the_operators_are_well_formed(inputs: list[Tensor]) -> None:
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    args = (*inputs, *documents())
    found = torch.library.opcheck(torch.ops.weft.packed_convolution.default, args, test_utils=tests)
    assert set(found.values()) == {"SUCCESS"}


def test_a_broken_document_breaks_no_other(inputs: list[Tensor]) -> None:
    u, kernel = (x.detach() for x in inputs)
    u[0, 2] = torch.nan
    y = packed_convolution(u, kernel, *documents())
    assert y[0, 2:40].isnan().all() and y[0, :2].isfinite().all() and y[0, 40:].isfinite().all()
    assert y[1:].isfinite().all()


def test_padding_at_most_doubles_long_documents() -> None:
    """One long document beside many short ones must not pad those to its length."""
    begins = torch.zeros(2, 1024, dtype=torch.bool)
    begins[0, ::20] = True
    groups = list(groups_of(begins, None))
    assert sum(int(group.inside.sum()) for group in groups) == 2 * 1024
    for group in groups:
        longest = int(group.inside.sum(1).max())
        assert longest <= SHORTEST or group.inside.numel() <= 2 * group.inside.sum()


def test_groups_are_put_back_where_they_stood() -> None:
    begins, count = documents()
    x = torch.randn(4, STEPS, 3)
    y = torch.zeros_like(x)
    for group in groups_of(begins, count):
        group.put(y, group.rows(x))
    torch.testing.assert_close(y, x * (torch.arange(STEPS) < count[:, None])[..., None], rtol=0, atol=0)
