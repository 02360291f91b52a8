"""Results that are made again in the backward pass: the same bits, less kept, each made once, and nothing held."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from weft.ops.activations import ACTIVATIONS, KEEP_THEIR_INPUT, ActivationName
from weft.ops.operator import StorageWeakRef, apart, cheap, dropping_cheap


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.ops.operator.LEAST", 1)


class Counting:
    """sin(x) as a cheap result, whose makings are counted."""

    def __init__(self) -> None:
        self.made = 0
        self.storage: StorageWeakRef | None = None

    def __call__(self, x: Tensor) -> Tensor:
        def recipe() -> Tensor:
            self.made += 1
            return torch.sin(x)

        y = torch.sin(x)
        self.storage = StorageWeakRef(y.untyped_storage())
        return cheap(y, recipe)

    @property
    def held(self) -> bool:
        assert self.storage is not None
        return not self.storage.expired()


def maps(count: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(5, 4, dtype=torch.float64) for _ in range(count)]


def into(y: Tensor, consumers: list[nn.Linear]) -> Tensor:
    """One number of several linear maps, one of which takes a part of ``y`` turned round."""
    ends = consumers[0](y[:, 1:].transpose(0, 1))
    return torch.stack([ends.square().sum(), *(f(y).square().sum() for f in consumers[1:])]).sum()


def gradients(loss: Tensor, x: Tensor, consumers: list[nn.Linear], *, keep: bool = False) -> list[Tensor]:
    wanted = [x, *(p for f in consumers for p in f.parameters())]
    return list(torch.autograd.grad(loss, wanted, retain_graph=keep))


def test_gradients_have_the_same_bits_and_the_result_is_let_go() -> None:
    x, consumers = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), maps(3)
    plain, lean = Counting(), Counting()
    loss = into(plain(x), consumers)
    assert plain.held
    wanted = gradients(loss, x, consumers)
    with dropping_cheap():
        loss = into(lean(x), consumers)
    assert not lean.held
    found = gradients(loss, x, consumers)
    assert (plain.made, lean.made) == (0, 1)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_second_pass_makes_it_once_more() -> None:
    x, consumers, lean = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), maps(3), Counting()
    with dropping_cheap():
        loss = into(lean(x), consumers)
    first = gradients(loss, x, consumers, keep=True)
    again = gradients(loss, x, consumers)
    assert lean.made == 2
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_second_derivatives_go_through_it() -> None:
    x, consumers = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), maps(2)

    def second() -> Tensor:
        slope, = torch.autograd.grad(into(Counting()(x), consumers), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    wanted = second()
    with dropping_cheap():
        found = second()
    assert_close(found, wanted, rtol=0, atol=0)


def test_what_comes_to_lie_where_a_result_lay_is_not_taken_for_it() -> None:
    consumers = maps(2)
    with dropping_cheap():
        for seed in range(50):
            torch.manual_seed(seed)
            Counting()(torch.randn(3, 5, dtype=torch.float64, requires_grad=True))  # and its memory is free at once
            other = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
            y = other * 2
            value = y.detach().clone()
            found, = torch.autograd.grad(consumers[1](y).square().sum(), consumers[1].weight)
            assert_close(found, 2 * (consumers[1](value).T @ value).detach(), rtol=1e-12, atol=1e-12)


def test_recipes_hold_their_arguments_no_longer_than_a_backward_pass_needs_them() -> None:
    consumers, lean = maps(2), Counting()
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    gone = weakref.ref(x)
    with dropping_cheap():
        lean(x.requires_grad_())  # nobody takes it in
        loss = into(Counting()(torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)), consumers)
        del x
        assert gone() is None
    loss.backward()


def test_small_results_and_those_outside_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, consumers, small, outside = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), maps(2), *(
        Counting() for _ in range(2))
    monkeypatch.setattr("weft.ops.operator.LEAST", x.numel() + 1)
    with dropping_cheap():
        loss = into(small(x), consumers)
    assert small.held
    monkeypatch.setattr("weft.ops.operator.LEAST", 1)
    loss = loss + into(outside(x), consumers)
    assert outside.held
    loss.backward()
    assert small.made == outside.made == 0


def test_a_part_does_not_hold_the_rest() -> None:
    x, weight = torch.randn(2, 3, 8, requires_grad=True), torch.randn(4, 5, requires_grad=True)

    def slope(part: Tensor) -> Tensor:
        return torch.autograd.grad(F.linear(part, weight).square().sum(), x)[0]

    whole = x * 2
    assert apart(whole[..., 3:]).data_ptr() == whole[..., 3:].data_ptr()
    wanted = slope(whole[..., 3:])
    with dropping_cheap():
        whole = x * 2
        part, rest = apart(whole[..., 3:]), StorageWeakRef(whole.untyped_storage())
    del whole
    assert rest.expired()
    # The part lies apart and not within the whole: products of other layouts add up in another order.
    assert_close(slope(part), wanted)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_activations_that_keep_their_input_are_known(name: ActivationName) -> None:
    """For those and no others it saves memory to drop the output, which whatever follows would keep."""
    x = torch.randn(4, requires_grad=True) * 1.0
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        ACTIVATIONS[name](x)
    assert (set(saved) == {x.data_ptr()}) == (name in KEEP_THEIR_INPUT)


def test_compiled_code_is_left_alone() -> None:
    torch._dynamo.reset()
    weight, x = torch.randn(4, 5, requires_grad=True), torch.randn(3, 5)
    compiled = torch.compile(lambda x: F.linear(cheap(torch.sin(x), lambda: torch.sin(x)), weight).sum(),
                             fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), F.linear(torch.sin(x), weight).sum())
