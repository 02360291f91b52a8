"""Packed documents as rows and back."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.clock import Clock
from weft.core.span import Span
from weft.ops.documents import SHORTEST, each_document


def sums(rows: Tensor, carried: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor | None]:
    """A mixer to test with: running sums, which start from what is carried."""
    start = rows.new_zeros(len(rows), rows.shape[2]) if carried is None else carried
    y = start[:, None] + rows.cumsum(1)
    if carried is None:
        return y, None
    every = torch.cat([start[:, None], y], 1)
    return y, every[torch.arange(len(rows)), count]


def by_hand(x: Tensor, start: Tensor, begins: Tensor, count: int) -> tuple[Tensor, Tensor]:
    total, outputs = start, []
    for t in range(count):
        total = x[t] + (torch.zeros_like(total) if begins[t] else total)
        outputs.append(total)
    return torch.stack([*outputs, *[torch.zeros_like(start)] * (len(x) - count)]), total


def test_documents_of_all_lengths_across_a_carried_state() -> None:
    torch.manual_seed(0)
    steps = 4 * SHORTEST
    x, carried = torch.randn(4, steps, 2, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    x.requires_grad_()
    begins = torch.zeros(4, steps, dtype=torch.bool)
    begins[0, [0, 1, 2, 40]] = True
    begins[1, [3, 20]] = True
    count = torch.tensor([steps, 30, 0, steps])
    clock = Clock.start(4).replace(seen=torch.tensor([5, 5, 7, 1]))
    span = Span(begins=begins, count=count).resolve(clock, x)
    y, after = each_document(x, carried, span, sums)
    y = span.clean(y)
    expected = [by_hand(x[b], carried[b], begins[b], int(count[b])) for b in range(4)]
    torch.testing.assert_close(y, torch.stack([e[0] for e in expected]), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(after, torch.stack([e[1] for e in expected]), rtol=1e-13, atol=1e-13)
    weight = torch.randn_like(y)
    got, wanted = (torch.autograd.grad((v * weight).sum(), x)[0] for v in (y, torch.stack([e[0] for e in expected])))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_padding_at_most_doubles_long_documents() -> None:
    """One long document beside many short ones must not pad those to its length."""
    steps, seen = 1024, []

    def run(rows: Tensor, carried: Tensor | None, count: Tensor) -> tuple[Tensor, Tensor | None]:
        seen.append((rows.shape[0] * rows.shape[1], int(count.sum()), int(count.max())))
        return rows, None

    begins = torch.zeros(2, steps, dtype=torch.bool)
    begins[0, ::20] = True
    x = torch.randn(2, steps, 3)
    y, after = each_document(x, None, Span(begins=begins).resolve(None, x), run)
    torch.testing.assert_close(y, x, rtol=0, atol=0)
    assert after is None
    assert sum(tokens for _, tokens, _ in seen) == 2 * steps
    assert all(work <= 2 * tokens for work, tokens, longest in seen if longest > SHORTEST)
