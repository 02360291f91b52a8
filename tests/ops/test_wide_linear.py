"""Products in float32 of narrower numbers: rounded once, in both directions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.linear.linear import Linear
from weft.ops import wide_linear as wide
from weft.ops.linear import LINEAR, LinearCall


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 40), (5, 40), (40,), (0, 40)])
def test_values_and_gradients_are_those_of_float32_rounded_once(
        shape: tuple[int, ...], bias: bool, pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(wide, "PIECE_ENTRIES", 80)  # two rows
    torch.manual_seed(0)
    linear = nn.Linear(40, 7, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(shape).bfloat16().requires_grad_()
    y = wide.wide_linear(x, linear.weight, linear.bias)
    dy = torch.randn(y.shape).bfloat16()
    narrow = torch.autograd.grad(y, [x, *linear.parameters()], dy)

    exact = [value.detach().double().requires_grad_() for value in (x, *linear.parameters())]
    truth = F.linear(exact[0], exact[1], exact[2] if bias else None)
    gradients = torch.autograd.grad(truth, exact, dy.double())
    for found, wanted in zip([y, *narrow], [truth, *gradients], strict=True):
        assert found.dtype == torch.bfloat16
        # Half of the spacing of bfloat16, whose mantissa has eight bits, and what float32 rounds before it.
        torch.testing.assert_close(found.double(), wanted, rtol=2**-8 + 1e-5, atol=1e-5)


def test_every_linear_map_of_a_model_takes_the_wide_form_where_the_processor_lacks_the_other(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "lacks_bfloat16", lambda: True)
    x, map_ = torch.randn(3, 4).bfloat16(), Linear(4, 5).bfloat16()
    call = LinearCall(x, map_.weight, map_.bias)
    assert LINEAR.choose(call).form.name == "wide"
    torch.testing.assert_close(map_(x), wide.wide_linear(x, map_.weight, map_.bias), rtol=0, atol=0)
    with torch.no_grad():  # a few rows do not pay for making a matrix wide
        assert LINEAR.choose(LinearCall(x[:1], map_.weight, map_.bias)).form.name == "library"


def test_a_processor_with_instructions_for_bfloat16_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, single = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)
    monkeypatch.setattr(wide, "lacks_bfloat16", lambda: False)
    assert not wide.widens(narrow)
    monkeypatch.setattr(wide, "lacks_bfloat16", lambda: True)
    assert wide.widens(narrow)
    assert not wide.widens(single)
    assert not wide.widens(narrow.to("meta"))


def test_a_linear_map_in_bfloat16_is_traced_as_one_graph() -> None:
    """Whether the processor has the instructions is no call that breaks the graph."""
    torch._dynamo.reset()
    map_, x = Linear(4, 5).bfloat16(), torch.randn(3, 4).bfloat16()
    compiled = torch.compile(lambda x: map_(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), map_(x), rtol=0, atol=0)
